// See host.h. PUFFER_FOLDER is the environment's folder, from the command line.

#undef rand
#undef srand
#undef exit
#undef _exit
#undef _Exit
#undef abort
#undef fopen

#include "host.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vec.h"

// ---- rand ---------------------------------------------------------------------------------------

static _Thread_local unsigned int* own_random = NULL;
static _Thread_local unsigned int thread_random = 1;

void puffer_set_random(unsigned int* state) {
    own_random = state;
}

int puffer_rand(void) {
    return puffer_rand_r(own_random == NULL ? &thread_random : own_random);
}

void puffer_srand(unsigned int seed) {
    *(own_random == NULL ? &thread_random : own_random) = seed;
}

int puffer_random_value(int min, int max) {
    const int64_t low = min < max ? min : max;
    const int64_t range = (min < max ? max : min) - low + 1;
    return (int)(low + puffer_rand() % range);
}

// ---- fopen --------------------------------------------------------------------------------------

#define PATH_ROOM 4096

const char* puffer_path(const char* path) {
#ifdef PUFFER_FOLDER
    static _Thread_local char room[4][PATH_ROOM];
    static _Thread_local unsigned int turn = 0;
    const char* above[] = {"", "/..", "/../..", "/../../.."};
    if (path == NULL || path[0] == '/' || path[0] == '\0') {
        return path;
    }
    char* to = room[turn++ % 4];
    for (int i = 0; i < 4; i++) {
        const int length = snprintf(to, PATH_ROOM, "%s%s/%s", PUFFER_FOLDER, above[i], path);
        if (length < PATH_ROOM && access(to, R_OK) == 0) {
            return to;
        }
    }
#endif
    return path;
}

FILE* puffer_fopen(const char* path, const char* mode) {
    static atomic_bool told = false;
    FILE* file = fopen(mode[0] == 'r' ? puffer_path(path) : path, mode);
    if (file == NULL && mode[0] == 'r' && !atomic_exchange(&told, true)) {
        // Most environments crash next.
        const int error = errno;
#ifdef PUFFER_FOLDER
        fprintf(stderr, "puffer_mlx: %s can't be opened: %s; looked for in %s, the three folders "
                "above it and the working directory\n", path, strerror(error), PUFFER_FOLDER);
#endif
        errno = error;
    }
    return file;
}

// ---- exit ---------------------------------------------------------------------------------------

typedef struct {
    jmp_buf back;  // for _setjmp, which is fast since it doesn't save the signal mask
    PufferFailure* failure;
} Guard;

static _Thread_local Guard* guard = NULL;

// Give this thread a separate stack for signal handlers, unless it has one: after a stack overflow
// there is no room on the thread's stack.
static void have_signal_stack(void) {
    static _Thread_local bool looked = false;
    static _Thread_local char room[64 << 10];
    stack_t stack;
    if (looked) {
        return;
    }
    looked = true;
    if (sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_DISABLE) != 0) {
        stack = (stack_t){.ss_sp = room, .ss_size = sizeof(room)};
        sigaltstack(&stack, NULL);
    }
}

bool puffer_guard(void (*work)(void*), void* context, PufferFailure* failure) {
    have_signal_stack();
    Guard here = {.failure = failure};
    Guard* const before = guard;
    volatile bool finished = false;
    failure->code = 0;
    failure->env = -1;
    failure->text[0] = '\0';
    guard = &here;
    if (_setjmp(here.back) == 0) {
        work(context);
        finished = true;
    }
    guard = before;
    return finished;
}

int* puffer_place(void) {
    static _Thread_local int nobody;
    return guard == NULL ? &nobody : &guard->failure->env;
}

static void go_back(int code) {
    if (guard != NULL) {
        guard->failure->code = code;
        _longjmp(guard->back, 1);
    }
}

void puffer_fail(int code, const char* format, ...) {
    PufferFailure nobody;
    PufferFailure* failure = guard == NULL ? &nobody : guard->failure;
    va_list rest;
    va_start(rest, format);
    vsnprintf(failure->text, sizeof(failure->text), format, rest);
    va_end(rest);
    go_back(code);
    fprintf(stderr, "puffer_mlx: %s\n", failure->text);
    exit(1);
}

void puffer_assertion_failed(const char* expression, const char* file, int line) {
    const char* slash = strrchr(file, '/');
    puffer_fail(PUFFER_ASSERTED, "%s:%d: %s", slash == NULL ? file : slash + 1, line, expression);
}

void puffer_exit(int code) {
    go_back(code);
    fprintf(stderr, "puffer_mlx: the environment called exit(%d)\n", code);
    exit(code);
}

void puffer_abort(void) {
    go_back(PUFFER_ABORT);
    fprintf(stderr, "puffer_mlx: the environment called abort()\n");
    abort();
}

// ---- crashes ------------------------------------------------------------------------------------

#define CRASHES 4
static const int crashes[CRASHES] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction before[CRASHES];

// Handle a crash signal: report which environment crashed. The previous handler gets the signal
// next: a crash happens again, and a signal of kill() is raised again. Nothing is saved, since
// memory may be damaged.
static void say_crash(int number, siginfo_t* info, void* context) {
    (void)context;
    static const char words[] =
        "error: an environment's C code crashed; checkpoints that were saved before are whole\n"
        "  hint: the usual cause is an index outside of an array, or recursion without an end;"
        " puffer-mlx check-env looks for it\n";
    if (guard != NULL && write(STDERR_FILENO, words, sizeof(words) - 1) < 0) {
        guard = NULL;  // standard error can't be written
    }
    for (int i = 0; i < CRASHES; i++) {
        if (crashes[i] == number) {
            sigaction(number, &before[i], NULL);
        }
    }
    if (info->si_code <= 0) {  // sent by kill()
        raise(number);
    }
}

void puffer_watch_crashes(void) {
    static atomic_flag watched = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&watched)) {
        return;
    }
    struct sigaction say = {.sa_sigaction = say_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (int i = 0; i < CRASHES; i++) {
        sigaction(crashes[i], &say, &before[i]);
    }
}
