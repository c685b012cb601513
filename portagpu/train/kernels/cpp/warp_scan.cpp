// sums[row][column] = the sum of a row up to and with that column: one warp takes a row.
#include "portagpu.h"

template <class T, class Sum>
PORTAGPU_DEVICE void row_scan(const T* values, Sum* sums, long long rows, long long columns) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        Sum before = 0;
        for (long long first = 0; first < columns; first += pg::warp_size) {
            const long long column = first + pg::lane();
            const bool inside = column < columns;
            const Sum value = inside ? Sum(values[row * columns + column]) : Sum(0);
            const Sum sum = before + pg::warp_scan(value);
            if (inside) sums[row * columns + column] = sum;
            before = pg::shuffle(sum, pg::warp_size - 1);
        }
    }
}

#define ROW_SCAN(name, T, Sum)                                                       \
    extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(256, 4) void name(                  \
        const T* values, Sum* sums, long long rows, long long columns) {             \
        row_scan(values, sums, rows, columns);                                       \
    }

ROW_SCAN(row_scan_f32, float, float)
ROW_SCAN(row_scan_f64, double, double)
ROW_SCAN(row_scan_i32, int, long long)
ROW_SCAN(row_scan_i64, long long, long long)
