// ranks[row][column] = how many flags before that column of the row are set: one warp takes a row.
#include "portagpu.h"

extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(256, 4) void row_rank(
    const unsigned char* flags, long long* ranks, long long rows, long long columns) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        long long before = 0;
        for (long long first = 0; first < columns; first += pg::warp_size) {
            const long long column = first + pg::lane();
            const bool inside = column < columns;
            const pg::lane_mask set = pg::ballot(inside && flags[row * columns + column] != 0);
            if (inside) ranks[row * columns + column] = before + pg::rank(set);
            before += pg::popcount(set);
        }
    }
}
