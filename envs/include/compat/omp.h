// A stand-in for omp.h. Environments are compiled without OpenMP, so its pragmas are ignored. The
// stepper's threads step many environments at once; each environment runs in one thread.

#ifndef PUFFER_OMP_H
#define PUFFER_OMP_H

#pragma GCC system_header  // without warnings, as in the real omp.h

#include <time.h>

typedef int omp_lock_t;
typedef int omp_nest_lock_t;

static inline void omp_set_num_threads(int threads) { (void)threads; }
static inline int omp_get_num_threads(void) { return 1; }
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_procs(void) { return 1; }
static inline int omp_in_parallel(void) { return 0; }
static inline void omp_set_dynamic(int dynamic) { (void)dynamic; }
static inline int omp_get_dynamic(void) { return 0; }
static inline void omp_set_nested(int nested) { (void)nested; }
static inline int omp_get_nested(void) { return 0; }
static inline int omp_get_level(void) { return 0; }

// Return the time of a monotonic clock in seconds (OpenMP's omp_get_wtime).
static inline double omp_get_wtime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
