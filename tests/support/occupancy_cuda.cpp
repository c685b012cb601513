// One line of numbers in, one line of what cuda_occupancy.h makes of it out; see occupancy_vendor.py.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

#include "cuda_occupancy.h"

int main() {
    cudaOccDeviceProp device;
    long long per_block, per_unit, optin, reserved, fixed, dynamic;
    int threads, registers, barriers, opted, carveout;
    while (std::scanf("%d %d %d %lld %lld %lld %lld %d %d %lld %lld %d %d %d", &device.computeMajor,
                      &device.computeMinor, &device.maxThreadsPerMultiprocessor, &per_block,
                      &per_unit, &optin, &reserved, &threads, &registers, &fixed, &dynamic,
                      &barriers, &opted, &carveout) == 14) {
        device.maxThreadsPerBlock = 1024;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.numSms = 1;
        device.sharedMemPerBlock = per_block;
        device.sharedMemPerMultiprocessor = per_unit;
        device.sharedMemPerBlockOptin = optin;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = INT_MAX;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = fixed;
        kernel.shmemLimitConfig = opted ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
        kernel.maxDynamicSharedSizeBytes = dynamic;
        kernel.numBlockBarriers = barriers;
        cudaOccDeviceState state;
        state.carveoutConfig = carveout;
        cudaOccResult found;
        std::memset(&found, 0, sizeof(found));
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &kernel,
                                                                     &state, threads, dynamic);
        std::printf("%d %d %d %d %d %d %d %d %lld %u\n", error, found.activeBlocksPerMultiprocessor,
                    found.blockLimitWarps, found.blockLimitRegs, found.blockLimitSharedMem,
                    found.blockLimitBlocks, found.blockLimitBarriers,
                    found.allocatedRegistersPerBlock,
                    static_cast<long long>(found.allocatedSharedMemPerBlock), found.limitingFactors);
    }
}
