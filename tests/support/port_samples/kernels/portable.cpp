#include <cstdint>
// 64 lanes or 32
int blocks(int n, int size) { return (n + size - 1) / size; }
uint64_t mask(uint64_t low) { return low & 0xffffffffffffffffULL; }
void pause() { asm volatile("pause"); }
bool bit(const uint32_t *lanes, int lane) { return lanes[lane / 32] >> (lane % 32) & 1; }
uint32_t low(uint64_t mask) { return mask & 0xffffffff; }
