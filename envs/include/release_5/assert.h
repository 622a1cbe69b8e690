// assert for environments of PufferLib 5.0. A failed assertion ends the run with a message that names
// its location; the process continues.

#undef assert
#ifdef NDEBUG
#define assert(...) ((void)0)
#else
#define assert(...) \
    ((__VA_ARGS__) ? (void)0 : puffer_assertion_failed(#__VA_ARGS__, __FILE__, __LINE__))
#endif

#ifndef PUFFER_ASSERT_H
#define PUFFER_ASSERT_H

#ifndef static_assert
#define static_assert _Static_assert
#endif

void puffer_assertion_failed(const char* expression, const char* file, int line)
    __attribute__((noreturn, cold));

#endif
