// The threads of a block on one CPU thread: each is a fiber, with a stack of
// its own, and runs until it has to wait for others.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace sim {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

// Threads meet here; the last one to arrive sets all free.
struct Barrier {
  int arrived = 0;
  int64_t round = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t values[32] = {};
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Dim thread;
  bool done = false;
  const Barrier* barrier = nullptr;  // what it waits at, and since which round
  int64_t round = 0;

  bool waits() const { return barrier && barrier->round == round; }
};

class Block {
 public:
  // run(kernel) is what every thread does.
  Block(Dim grid, Dim size, void (*run)(const void*), const void* kernel)
      : grid(grid), size(size), fibers(size.x), run_(run), kernel_(kernel) {
    for (auto& fiber : fibers) fiber.stack.reset(new char[kStack]);
    for (unsigned i = 0; i < size.x; ++i) order_.push_back(i);
  }

  // Run all threads of block `index` to their ends. False: those that are left
  // wait at a barrier which others never reach.
  bool run(Dim index);

  // Called by a thread: wait at `barrier` until `count` threads have come.
  void wait(Barrier& barrier, int count) {
    if (++barrier.arrived == count) {
      barrier.arrived = 0;
      ++barrier.round;
      return;
    }
    current->barrier = &barrier;
    current->round = barrier.round;
    swapcontext(&current->context, &scheduler_);
  }

  Dim grid, size, index;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  Fiber* current = nullptr;

 private:
  static constexpr std::size_t kStack = 64 << 10;
  static void enter();
  void start(unsigned number);
  void shuffle();

  void (*run_)(const void*);
  const void* kernel_;
  std::vector<unsigned> order_;
  uint64_t random_ = 1;
  ucontext_t scheduler_;
};

inline Block* block = nullptr;  // the one that runs

inline void Block::enter() {
  block->run_(block->kernel_);
  block->current->done = true;
}

inline void Block::start(unsigned number) {
  Fiber& fiber = fibers[number];
  fiber.thread = {number, 0, 0};
  fiber.done = false;
  fiber.barrier = nullptr;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &scheduler_;
  makecontext(&fiber.context, enter, 0);
}

// No order of threads is promised; another one for each block shows what
// relies on one.
inline void Block::shuffle() {
  for (unsigned left = size.x; left > 1; --left) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    std::swap(order_[left - 1], order_[(random_ >> 33) % left]);
  }
}

inline bool Block::run(Dim at) {
  block = this;
  index = at;
  barrier = {};
  warps.assign((size.x + 31) / 32, {});
  for (unsigned i = 0; i < size.x; ++i) start(i);
  shuffle();
  unsigned done = 0;
  while (done < size.x) {
    bool moved = false;
    for (unsigned number : order_) {
      current = &fibers[number];
      if (current->done || current->waits()) continue;
      swapcontext(&scheduler_, &current->context);
      done += current->done;
      moved = true;
    }
    if (!moved) return false;
  }
  return true;
}

}  // namespace sim
