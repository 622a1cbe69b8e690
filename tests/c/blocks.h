// A GPU's built-in functions for kernels that run as C++; ../emulated_run.py adds the others before the text.
#include <bit>
#include <cmath>
#include <cstdint>
using std::exp;
using std::log;
using std::pow;
using std::sqrt;
typedef unsigned int uint;
struct uint3 { uint x, y, z; };
struct Place { uint3 grid, block, me; };

void meet();          // a barrier of the block's threads
void meet_cluster();  // a barrier of all blocks that run together
typedef void Kernel(const void* given, Place at);
// Run the thread blocks of an emulated kernel. Returns true if at every barrier all threads of a block met, or none did.
int run_blocks(uint threads, uint size, uint turn, uint together, Kernel* kernel, const void* given);

template <class Function>
static int run_blocks(uint threads, uint size, uint turn, uint together, Function function) {
  Kernel* kernel = [](const void* given, Place at) { (*(const Function*)given)(at); };
  return run_blocks(threads, size, turn, together, kernel, &function);
}
