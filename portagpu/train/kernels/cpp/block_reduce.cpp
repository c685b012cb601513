// partials[block] = the sum of what the threads of that block stride over.
#include "portagpu.h"

template <class T, class Sum>
PORTAGPU_DEVICE void partial_sum(const T* values, Sum* partials, long long n) {
    Sum sum = 0;
    for (long long i = pg::thread_in_grid(); i < n; i += pg::threads_in_grid())
        sum += Sum(values[i]);
    sum = pg::block_sum(sum);
    if (pg::thread_index() == 0) partials[pg::block_index()] = sum;
}

#define PARTIAL_SUM(name, T, Sum)                                                    \
    extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(1024, 1) void name(                 \
        const T* values, Sum* partials, long long n) {                               \
        partial_sum(values, partials, n);                                            \
    }

PARTIAL_SUM(partial_sum_f32, float, float)
PARTIAL_SUM(partial_sum_f64, double, double)
PARTIAL_SUM(partial_sum_i32, int, long long)
PARTIAL_SUM(partial_sum_i64, long long, long long)
