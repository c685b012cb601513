// counts[bin] = how many values are that bin; counts[bins] = how many are outside 0 to bins - 1.
//
// counts starts at zero. Up to shared_bins bins, a block counts in shared memory first, in 32 bits:
// it strides over fewer than 2^32 values.
#include "portagpu.h"

constexpr int shared_bins = 2048;

template <class T>
PORTAGPU_DEVICE void histogram(const T* values, unsigned long long* counts, long long n,
                               long long bins) {
    __shared__ unsigned own[shared_bins];
    const bool shared = bins <= shared_bins;
    if (shared) {
        for (int bin = pg::thread_index(); bin < bins; bin += pg::block_size()) own[bin] = 0;
        pg::barrier();
    }
    for (long long i = pg::thread_in_grid(); i < n; i += pg::threads_in_grid()) {
        const long long value = values[i];
        if (value < 0 || value >= bins)
            pg::atomic_add(counts + bins, 1ull);
        else if (shared)
            pg::atomic_add(own + value, 1u);
        else
            pg::atomic_add(counts + value, 1ull);
    }
    if (shared) {
        pg::barrier();
        for (int bin = pg::thread_index(); bin < bins; bin += pg::block_size())
            if (own[bin] != 0) pg::atomic_add(counts + bin, 0ull + own[bin]);
    }
}

#define HISTOGRAM(name, T)                                                           \
    extern "C" __global__ PORTAGPU_LAUNCH_BOUNDS(256, 4) void name(                  \
        const T* values, unsigned long long* counts, long long n, long long bins) {  \
        histogram(values, counts, n, bins);                                          \
    }

HISTOGRAM(histogram_i32, int)
HISTOGRAM(histogram_i64, long long)
