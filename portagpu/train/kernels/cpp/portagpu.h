// Words in which one kernel source means the same on NVIDIA, AMD and a host.
//
// Nothing of CUDA's or HIP's headers is used: a compiler of device code is enough (NVRTC, nvcc,
// hipRTC, clang). The blocks of a launch have one dimension and are whole warps, and all lanes of a
// warp take part in what exchanges values between lanes. A lane mask has 64 bits everywhere.
//
// What is left out on purpose: masks as arguments (a literal 0xffffffff is half a wave of 64
// lanes), warpSize (HIP's is not a constant expression from ROCm 7 on), asserts (compiled out on ROCm:
// count what is wrong and let the host raise), versions of toolkits (their numbers do not compare),
// and atomics on 16-bit floats (missing or emulated: accumulate in float and convert once).
#ifndef PORTAGPU_H
#define PORTAGPU_H

#if defined(__AMDGCN__)

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#define PORTAGPU_DEVICE static __device__ inline __attribute__((always_inline))

// HIP's second bound is warps per SIMD where CUDA's is blocks per multiprocessor: converted here,
// rounded up, with the four SIMDs of a compute unit (gfx9) or workgroup processor (gfx10 on).
#define PORTAGPU_LAUNCH_BOUNDS(threads, blocks)                   \
    __attribute__((amdgpu_flat_work_group_size(1, threads),       \
                   amdgpu_waves_per_eu(portagpu::waves_per_simd(threads, blocks))))

namespace portagpu {

using lane_mask = unsigned long long;

// LLVM, "User Guide for AMDGPU Backend": gfx9 has waves of 64 lanes, gfx10 and later of 32, which is
// also all that HIP launches there. A code object states its wave size; another one than this is
// refused after compilation.
#if defined(__GFX9__)
constexpr int warp_size = 64;
#elif defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
constexpr int warp_size = 32;
#else
#error "portagpu.h does not know the warp size of this architecture"
#endif
constexpr int simds_per_unit = 4;

constexpr int waves_per_simd(int threads, int blocks) {
    return (blocks * ((threads + warp_size - 1) / warp_size) + simds_per_unit - 1) / simds_per_unit;
}

PORTAGPU_DEVICE int thread_index() { return __builtin_amdgcn_workitem_id_x(); }
PORTAGPU_DEVICE int block_size() { return __builtin_amdgcn_workgroup_size_x(); }
PORTAGPU_DEVICE long long block_index() { return __builtin_amdgcn_workgroup_id_x(); }
PORTAGPU_DEVICE long long grid_size() {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
PORTAGPU_DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PORTAGPU_DEVICE lane_mask ballot(bool vote) { return __builtin_amdgcn_ballot_w64(vote); }
PORTAGPU_DEVICE int popcount(lane_mask mask) { return __builtin_popcountll(mask); }

namespace detail {
PORTAGPU_DEVICE unsigned read_lane(unsigned word, int source) {
    return __builtin_amdgcn_ds_bpermute(4 * source, word);
}
template <class T>
PORTAGPU_DEVICE T add(T* address, T value) {
    return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
}  // namespace detail
}  // namespace portagpu

#elif defined(__HIP__) || defined(__HIPCC__)

#error "portagpu.h is for device code, where the warp size is known: add --offload-device-only"

#elif defined(__CUDACC__)

#define PORTAGPU_DEVICE static __device__ __forceinline__
#define PORTAGPU_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

namespace portagpu {

using lane_mask = unsigned long long;
constexpr int warp_size = 32;  // CUDA C++ Programming Guide, "SIMT Architecture"

PORTAGPU_DEVICE int thread_index() { return threadIdx.x; }
PORTAGPU_DEVICE int block_size() { return blockDim.x; }
PORTAGPU_DEVICE long long block_index() { return blockIdx.x; }
PORTAGPU_DEVICE long long grid_size() { return gridDim.x; }
PORTAGPU_DEVICE void barrier() { __syncthreads(); }
PORTAGPU_DEVICE lane_mask ballot(bool vote) { return __ballot_sync(~0u, vote); }
PORTAGPU_DEVICE int popcount(lane_mask mask) { return __popcll(mask); }

namespace detail {
PORTAGPU_DEVICE unsigned read_lane(unsigned word, int source) {
    return __shfl_sync(~0u, word, source);
}
template <class T>
PORTAGPU_DEVICE T add(T* address, T value) {
    return atomicAdd(address, value);
}
}  // namespace detail
}  // namespace portagpu

#else

// Another compiler: the same names from a file of its own, as in the two parts above.
#include "portagpu_platform.h"

#endif

namespace portagpu {

constexpr int max_block_size = 1024;  // threads; of every GPU that is known here
constexpr int max_warps = max_block_size / warp_size;

PORTAGPU_DEVICE int lane() { return thread_index() % warp_size; }
PORTAGPU_DEVICE int warp() { return thread_index() / warp_size; }
PORTAGPU_DEVICE int warps_in_block() { return block_size() / warp_size; }
PORTAGPU_DEVICE long long warp_in_grid() { return block_index() * warps_in_block() + warp(); }
PORTAGPU_DEVICE long long warps_in_grid() { return grid_size() * warps_in_block(); }
PORTAGPU_DEVICE long long thread_in_grid() { return block_index() * block_size() + thread_index(); }
PORTAGPU_DEVICE long long threads_in_grid() { return grid_size() * block_size(); }

PORTAGPU_DEVICE lane_mask all_lanes() { return ~lane_mask(0) >> (64 - warp_size); }
PORTAGPU_DEVICE lane_mask lanes_below() { return (lane_mask(1) << lane()) - 1; }
PORTAGPU_DEVICE bool any(bool vote) { return ballot(vote) != 0; }
PORTAGPU_DEVICE bool all(bool vote) { return ballot(vote) == all_lanes(); }
// How many lanes before this one are in the mask.
PORTAGPU_DEVICE int rank(lane_mask mask) { return popcount(mask & lanes_below()); }

// The value of the lane ``source``, 0 to warp_size - 1.
template <class T>
PORTAGPU_DEVICE T shuffle(T value, int source) {
    static_assert(sizeof(T) % sizeof(unsigned) == 0, "lanes exchange 32-bit words");
    constexpr int count = sizeof(T) / sizeof(unsigned);
    union {
        T whole;
        unsigned words[count];
    } moved = {value};
    for (int i = 0; i < count; ++i) moved.words[i] = detail::read_lane(moved.words[i], source);
    return moved.whole;
}
template <class T>
PORTAGPU_DEVICE T shuffle_xor(T value, int bits) {
    return shuffle(value, lane() ^ bits);
}
// The value ``distance`` lanes above; the lane's own where there is none.
template <class T>
PORTAGPU_DEVICE T shuffle_down(T value, int distance) {
    return shuffle(value, lane() + distance < warp_size ? lane() + distance : lane());
}
// The value ``distance`` lanes below; the lane's own where there is none.
template <class T>
PORTAGPU_DEVICE T shuffle_up(T value, int distance) {
    return shuffle(value, lane() >= distance ? lane() - distance : lane());
}

// Returns what was there before. Relaxed, visible to the whole device, in shared memory too.
template <class T>
PORTAGPU_DEVICE T atomic_add(T* address, T value) = delete;
PORTAGPU_DEVICE int atomic_add(int* a, int v) { return detail::add(a, v); }
PORTAGPU_DEVICE unsigned atomic_add(unsigned* a, unsigned v) { return detail::add(a, v); }
PORTAGPU_DEVICE unsigned long long atomic_add(unsigned long long* a, unsigned long long v) {
    return detail::add(a, v);
}
PORTAGPU_DEVICE float atomic_add(float* a, float v) { return detail::add(a, v); }
PORTAGPU_DEVICE double atomic_add(double* a, double v) { return detail::add(a, v); }

// The sum over the lanes of a warp, in every lane.
template <class T>
PORTAGPU_DEVICE T warp_sum(T value) {
    for (int bits = warp_size / 2; bits > 0; bits /= 2) value += shuffle_xor(value, bits);
    return value;
}

// The sum over the lanes up to and with this one.
template <class T>
PORTAGPU_DEVICE T warp_scan(T value) {
    for (int distance = 1; distance < warp_size; distance *= 2) {
        const T before = shuffle_up(value, distance);
        if (lane() >= distance) value += before;
    }
    return value;
}

// The sum over the threads of a block, in every lane of warp 0; all threads call it.
template <class T>
PORTAGPU_DEVICE T block_sum(T value) {
    static_assert(max_warps <= warp_size, "one warp adds what the warps leave");
    __shared__ T partial[max_warps];
    barrier();  // an earlier call may still be read
    value = warp_sum(value);
    if (lane() == 0) partial[warp()] = value;
    barrier();
    if (warp() == 0) value = warp_sum(lane() < warps_in_block() ? partial[lane()] : T(0));
    return value;
}

}  // namespace portagpu

// Always qualified: compilers declare an any, an all and a ballot of their own.
namespace pg = portagpu;

#endif
