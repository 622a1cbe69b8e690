// Included before the stepper's sources: half a second passes between the decision that environments
// have ended and the text that says why.

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#undef atomic_store
#define atomic_store(at, value)                                            \
    do {                                                                   \
        if (strcmp(#value, "PUFFER_ENDED_ITSELF") == 0) usleep(500000);    \
        atomic_store_explicit(at, value, memory_order_seq_cst);            \
    } while (0)
