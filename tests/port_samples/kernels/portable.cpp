#include <cstdint>
// 64 lanes or 32
int blocks(int n, int size) { return (n + size - 1) / size; }
uint64_t mask(uint64_t low) { return low & 0xffffffffffffffffULL; }
