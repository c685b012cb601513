// totals[row] = the sum of a row: one warp takes a row, its lanes stride over the columns.
#include "portagpu.h"

template <class T, class Sum>
PORTAGPU_DEVICE void row_sum(const T* values, Sum* totals, long long rows, long long columns) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        Sum sum = 0;
        for (long long column = pg::lane(); column < columns; column += pg::warp_size)
            sum += Sum(values[row * columns + column]);
        sum = pg::warp_sum(sum);
        if (pg::lane() == 0) totals[row] = sum;
    }
}

#define ROW_SUM(name, T, Sum)                                                        \
    extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(256, 4) void name(                  \
        const T* values, Sum* totals, long long rows, long long columns) {           \
        row_sum(values, totals, rows, columns);                                      \
    }

ROW_SUM(row_sum_f32, float, float)
ROW_SUM(row_sum_f64, double, double)
ROW_SUM(row_sum_i32, int, long long)
ROW_SUM(row_sum_i64, long long, long long)
