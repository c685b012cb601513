#include <cuda_runtime.h>
#include <cub/cub.cuh>
// mask & 31 in a comment is no use
#define WARP_SIZE 32
static const int warps = 1024 / 32;  /* 0xffffffff in a comment */
__launch_bounds__(256, 2) __global__ void reduce(float *out, const float *in) {
  int lane = threadIdx.x & 31;
  int warp = threadIdx.x >> 5;
  unsigned ballot = __ballot_sync(0xffffffff, in[lane] > 0);
  float value = __shfl_down_sync(0xFFFFFFFFu, in[warp], 16);
  asm volatile("bar.sync 0;");
  __shared__ float shared[1024 / warpSize];
  out[0] = value + __popc(ballot) + tex1Dfetch<float>(0, lane);
}
int tiles(int columns) { return columns / 32; }
unsigned low(unsigned long long value) { return value & 0xffffffff; }
__device__ float partial(const float *sums, int lane, int row) { return sums[lane + row * warpSize]; }
