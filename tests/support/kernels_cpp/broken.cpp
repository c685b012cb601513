// What kernels that were written for warps of 32 get wrong, one mistake each (and three others).
// The words are CUDA's and HIP's own, with a ballot of 64 bits as HIP has it.
#include "portagpu.h"

namespace cuda {
struct Index {
    operator int() const { return pg::thread_index(); }
};
const struct {
    Index x;
} threadIdx;
static inline unsigned long long ballot(bool mine) { return shim::vote(shim::full, mine); }
static inline unsigned long long ballot_sync(unsigned long long mask, bool mine) {
    return shim::vote(mask, mine);
}
}  // namespace cuda
using cuda::threadIdx;

// The mistake is in the lane: & 31. Half of the columns are added twice, the others never.
extern "C" void lane_and_31(const long long* values, long long* totals, long long rows,
                            long long columns) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        long long sum = 0;
        for (long long c = threadIdx.x & 31; c < columns; c += pg::warp_size)
            sum += values[row * columns + c];
        sum = pg::warp_sum(sum);
        if (pg::lane() == 0) totals[row] = sum;
    }
}

// The mistake is in the warp: >> 5. Halves of a wave of 64 take different rows.
extern "C" void warp_shift_5(const long long* values, long long* totals, long long rows,
                             long long columns) {
    const long long row = pg::block_index() * (pg::block_size() >> 5) + (threadIdx.x >> 5);
    long long sum = 0;
    for (long long c = pg::lane(); row < rows && c < columns; c += pg::warp_size)
        sum += values[row * columns + c];
    sum = pg::warp_sum(sum);
    if (row < rows && pg::lane() == 0) totals[row] = sum;
}

// The mistake is in the loop: it starts at 16, so that half of a wave of 64 is left out.
extern "C" void loop_from_16(const long long* values, long long* totals, long long rows,
                             long long columns) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        long long sum = 0;
        for (long long c = pg::lane(); c < columns; c += pg::warp_size)
            sum += values[row * columns + c];
        for (int distance = 16; distance > 0; distance /= 2)
            sum += pg::shuffle_down(sum, distance);
        if (pg::lane() == 0) totals[row] = sum;
    }
}

template <class Vote>
static void rank_with(const unsigned char* flags, long long* ranks, long long rows,
                      long long columns, Vote vote) {
    for (long long row = pg::warp_in_grid(); row < rows; row += pg::warps_in_grid()) {
        long long before = 0;
        for (long long first = 0; first < columns; first += pg::warp_size) {
            const long long c = first + pg::lane();
            const auto found = vote(c < columns && flags[row * columns + c] != 0);
            if (c < columns) ranks[row * columns + c] = before + found.first;
            before += found.second;
        }
    }
}

// The mistake is in the type: a ballot of 64 bits in 32.
extern "C" void ballot_in_32_bits(const unsigned char* flags, long long* ranks, long long rows,
                                  long long columns) {
    rank_with(flags, ranks, rows, columns, [](bool mine) {
        const unsigned set = cuda::ballot(mine);
        return std::pair(pg::rank(set), __builtin_popcount(set));
    });
}

// The mistake is in the count: of the lower 32 bits alone.
extern "C" void popcount_of_32_bits(const unsigned char* flags, long long* ranks, long long rows,
                                    long long columns) {
    rank_with(flags, ranks, rows, columns, [](bool mine) {
        const unsigned long long set = cuda::ballot(mine);
        return std::pair(__builtin_popcount(set & pg::lanes_below()), __builtin_popcountll(set));
    });
}

// The mistake is in the mask: 0xffffffff names half of a wave of 64.
extern "C" void mask_of_32_lanes(const unsigned char* flags, long long* ranks, long long rows,
                                 long long columns) {
    rank_with(flags, ranks, rows, columns, [](bool mine) {
        const unsigned long long set = cuda::ballot_sync(0xffffffff, mine);
        return std::pair(pg::rank(set), pg::popcount(set));
    });
}

template <int slots, bool with_barrier>
static void sum_block(const long long* values, long long* partials, long long n) {
    __shared__ long long partial[slots];
    long long sum = 0;
    for (long long i = pg::thread_in_grid(); i < n; i += pg::threads_in_grid()) sum += values[i];
    sum = pg::warp_sum(sum);
    if (pg::lane() == 0) partial[pg::warp()] = sum;
    if (with_barrier) pg::barrier();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int i = 0; i < pg::warps_in_block(); ++i) sum += partial[i];
        partials[pg::block_index()] = sum;
    }
    pg::barrier();
}

// The mistake is in the array: 1024 / 64 slots, where a block has up to 1024 / 32 warps.
extern "C" void array_for_64(const long long* values, long long* partials, long long n) {
    sum_block<16, true>(values, partials, n);
}

// The mistake is a barrier that is missing.
extern "C" void no_barrier(const long long* values, long long* partials, long long n) {
    sum_block<32, false>(values, partials, n);
}

// The mistake is a shuffle that some lanes do not reach.
extern "C" void diverged(const long long* values, long long* partials, long long n) {
    long long sum = pg::thread_in_grid() < n ? values[pg::thread_in_grid()] : 0;
    if (threadIdx.x % 3 != 0) sum = pg::warp_sum(sum);
    partials[pg::block_index()] = sum;
}

PORTAGPU_SHIM_EXPORT(lane_and_31)
PORTAGPU_SHIM_EXPORT(warp_shift_5)
PORTAGPU_SHIM_EXPORT(loop_from_16)
PORTAGPU_SHIM_EXPORT(ballot_in_32_bits)
PORTAGPU_SHIM_EXPORT(popcount_of_32_bits)
PORTAGPU_SHIM_EXPORT(mask_of_32_lanes)
PORTAGPU_SHIM_EXPORT(array_for_64)
PORTAGPU_SHIM_EXPORT(no_barrier)
PORTAGPU_SHIM_EXPORT(diverged)
