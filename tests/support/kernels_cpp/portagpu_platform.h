// A block's threads on one host thread: lanes that stop at what they do together.
//
// Each thread of a block is a fiber. It runs until it exchanges a value with its warp, votes or
// waits at the barrier. When every thread has stopped, what is complete is resolved: an exchange or
// a vote once all lanes that its mask names have arrived at it, a barrier once all threads have.
// Whatever real hardware leaves undefined ends the launch with a sentence. Threads run in order, or
// from the last to the first (PORTAGPU_SHIM_BACKWARD), so that a missing barrier shows.
#ifndef PORTAGPU_PLATFORM_H
#define PORTAGPU_PLATFORM_H

#include <ucontext.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define PORTAGPU_DEVICE static inline
#define PORTAGPU_LAUNCH_BOUNDS(threads, blocks)

namespace shim {

using mask_t = unsigned long long;
constexpr int warp_size = PORTAGPU_SHIM_WARP_SIZE;
constexpr mask_t full = ~mask_t(0) >> (64 - warp_size);
constexpr size_t stack_bytes = 64 * 1024;

enum class At { start, running, exchange, vote, barrier, done };
inline const char* const words[] = {"the start", "nothing", "a shuffle",
                                    "a ballot",  "the barrier", "its end"};

struct Thread {
    ucontext_t context;
    At at = At::start;
    mask_t mask = 0;
    unsigned word = 0;
    int source = 0;
    bool vote = false;
    mask_t votes = 0;
};

struct Block {
    int size = 0;
    long long index = 0, grid = 0;
    int current = 0;
    std::vector<Thread> threads;
    ucontext_t scheduler;
    std::string failure;
    void (*body)(void*) = nullptr;
    void* arguments = nullptr;
};
inline Block block;
inline std::vector<char> stacks;

inline Thread& self() { return block.threads[block.current]; }
inline void stop() { swapcontext(&self().context, &block.scheduler); }

template <class... Parts>
void fail(const char* form, Parts... parts) {
    char text[256];
    std::snprintf(text, sizeof text, form, parts...);
    block.failure = text;
    for (;;) stop();
}

inline void arrive(At at, mask_t mask) {
    const int lane = block.current % warp_size;
    if (!(mask >> lane & 1)) fail("lane %d is not in its own mask 0x%llx", lane, mask);
    if (mask & ~full) fail("the mask 0x%llx names lanes that a warp does not have", mask);
    self().at = at;
    self().mask = mask;
    stop();
}
inline unsigned exchange(mask_t mask, unsigned word, int source) {
    if (source < 0 || source >= warp_size) fail("a lane reads lane %d", source);
    if (!(mask >> source & 1)) fail("a lane reads lane %d outside the mask 0x%llx", source, mask);
    self().word = word;
    self().source = source;
    arrive(At::exchange, mask);
    return self().word;
}
inline mask_t vote(mask_t mask, bool mine) {
    self().vote = mine;
    arrive(At::vote, mask);
    return self().votes;
}

// Resolves what the lanes of ``mask`` wait for, where all of them wait for the same.
inline bool resolve(Thread* warp, const Thread& first) {
    const mask_t mask = first.mask;
    const At at = first.at;
    unsigned read[64];
    mask_t votes = 0;
    for (int lane = 0; lane < warp_size; ++lane) {
        if (!(mask >> lane & 1)) continue;
        if (warp[lane].at != at || warp[lane].mask != mask) return false;
        if (at == At::vote) votes |= mask_t(warp[lane].vote) << lane;
        if (at == At::exchange) read[lane] = warp[warp[lane].source].word;
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        if (!(mask >> lane & 1)) continue;
        warp[lane].word = read[lane];
        warp[lane].votes = votes;
        warp[lane].at = At::running;
    }
    return true;
}

inline bool resolve_all() {
    bool moved = false;
    int waiting = 0, done = 0;
    for (int i = 0; i < block.size; ++i) {
        Thread& thread = block.threads[i];
        waiting += thread.at == At::barrier;
        done += thread.at == At::done;
        if (thread.at == At::exchange || thread.at == At::vote)
            moved |= resolve(&block.threads[i / warp_size * warp_size], thread);
    }
    if (waiting == block.size) {
        for (Thread& thread : block.threads) thread.at = At::running;
        return true;
    }
    return moved || done == block.size;
}

inline void explain_standstill() {
    char text[256];
    const Thread* first = nullptr;
    for (int i = 0; i < block.size; ++i) {
        const Thread& thread = block.threads[i];
        if (first == nullptr && thread.at != At::done) first = &thread;
        if (first == nullptr || (thread.at == first->at && thread.mask == first->mask)) continue;
        std::snprintf(text, sizeof text, "thread %d waits at %s and thread %d is at %s",
                      int(first - block.threads.data()), words[int(first->at)], i,
                      words[int(thread.at)]);
        block.failure = text;
        return;
    }
    block.failure = "threads of the block have ended before the others' collective";
}

inline void enter() {
    block.body(block.arguments);
    self().at = At::done;
    stop();
}

inline void run_block(bool backward) {
    block.threads.assign(block.size, Thread());
    for (int i = 0; i < block.size; ++i) {
        Thread& thread = block.threads[i];
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = stacks.data() + i * stack_bytes;
        thread.context.uc_stack.ss_size = stack_bytes;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
        thread.at = At::running;
    }
    for (int done = 0; done < block.size;) {
        done = 0;
        for (int i = 0; i < block.size; ++i) {
            block.current = backward ? block.size - 1 - i : i;
            if (self().at == At::running) swapcontext(&block.scheduler, &self().context);
            if (!block.failure.empty()) return;
        }
        for (const Thread& thread : block.threads) done += thread.at == At::done;
        if (!resolve_all()) return explain_standstill();
    }
}

// Arguments as cuLaunchKernel takes them: the address of each, all of 8 bytes.
template <class... T>
struct Call {
    void (*kernel)(T...);
    void** values;
    template <size_t... I>
    void operator()(std::index_sequence<I...>) const {
        kernel(*static_cast<T*>(values[I])...);
    }
};

template <class... T>
const char* launch(void (*kernel)(T...), long long grid, int size, int backward, void** values) {
    static_assert(((sizeof(T) == 8) && ...), "parameters are pointers or 64-bit integers");
    static std::string said;
    if (size % warp_size) return "the block is not a multiple of warps";
    Call<T...> call{kernel, values};
    stacks.resize(size * stack_bytes);
    block.failure.clear();
    block.size = size;
    block.grid = grid;
    block.arguments = &call;
    block.body = [](void* it) { (*static_cast<Call<T...>*>(it))(std::index_sequence_for<T...>{}); };
    for (block.index = 0; block.index < grid && block.failure.empty(); ++block.index)
        run_block(backward);
    said = block.failure;
    return said.empty() ? nullptr : said.c_str();
}

}  // namespace shim

#define PORTAGPU_SHIM_EXPORT(name)                                                          \
    extern "C" const char* launch_##name(long long grid, int size, int backward, void** a) { \
        return shim::launch(name, grid, size, backward, a);                                  \
    }

// -fsanitize=bounds calls it where an index is outside its array.
extern "C" inline void __attribute__((used)) __ubsan_handle_out_of_bounds(void*, void* index) {
    shim::fail("index %zu is outside its array", reinterpret_cast<size_t>(index));
}

namespace portagpu {

using lane_mask = shim::mask_t;
constexpr int warp_size = shim::warp_size;

PORTAGPU_DEVICE int thread_index() { return shim::block.current; }
PORTAGPU_DEVICE int block_size() { return shim::block.size; }
PORTAGPU_DEVICE long long block_index() { return shim::block.index; }
PORTAGPU_DEVICE long long grid_size() { return shim::block.grid; }
PORTAGPU_DEVICE void barrier() {
    shim::self().at = shim::At::barrier;
    shim::stop();
}
PORTAGPU_DEVICE lane_mask ballot(bool mine) { return shim::vote(shim::full, mine); }
PORTAGPU_DEVICE int popcount(lane_mask mask) { return __builtin_popcountll(mask); }

namespace detail {
PORTAGPU_DEVICE unsigned read_lane(unsigned word, int source) {
    return shim::exchange(shim::full, word, source);
}
template <class T>
PORTAGPU_DEVICE T add(T* address, T value) {
    const T before = *address;
    *address += value;
    return before;
}
}  // namespace detail
}  // namespace portagpu

#endif
