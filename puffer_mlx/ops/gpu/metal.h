// Definitions for Metal: text.py puts them before every kernel file, and `begin` at the start of every kernel.

#define FUNCTION inline
#define CALLED __attribute__((noinline))
#define SHARED threadgroup
#define IN_DEVICE device
#define IN_SHARED threadgroup
#define IN_THREAD thread
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup);
#define DEVICE_BARRIER threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
#define CLUSTER_BARRIER(blocks) DEVICE_BARRIER
#define END_OF_COPIES
#define WAIT_FOR_COPIES(others)
#define PREFETCH(address)
#define SHARED_POOL(name, count) SHARED float name[count];

namespace puffer {}  // portable code: ops/portable.h
using namespace puffer;

KERNEL begin {
  uint i = thread_position_in_grid.x, me = thread_position_in_threadgroup.x;
  uint block = threadgroup_position_in_grid.x;
}
