// The definitions for glue.h of PufferLib 5.0. Included by release_5/binding.c after a NAME.h.

#ifndef PUFFER_GLUE_5_H
#define PUFFER_GLUE_5_H

#if !defined(OBS_SIZE) || !defined(NUM_ATNS) || !defined(ACT_SIZES)
#error "NAME.h must define OBS_SIZE, NUM_ATNS and ACT_SIZES"
#endif
#if PUF_BACKEND == PUF_GPU
#error "the environment steps on a GPU (PUF_BACKEND is PUF_GPU); environments step on the CPU here"
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#if __has_include(<omp.h>)
#include <omp.h>
#endif

#include "ops.h"

#define PUFFER_RELEASE 5
#define PUFFER_INIT puf_init
#define PUFFER_CHECK puffer_check_agents
#define PUFFER_LOG puf_log
#define PUFFER_RESET puf_reset
#define PUFFER_STEP puf_step
#define PUFFER_RENDER puffer_render_in_time
#define PUFFER_CLOSE puf_close

_Static_assert(_Generic((obs_t)0, float: 1, unsigned char: 1, uint16_t: 1, default: 0),
               "obs_t must be float, unsigned char or bf16 (uint16_t)");
#define PUFFER_OWN_OBS obs_t
#define PUFFER_OBS __typeof__(_Generic((obs_t)0, unsigned char: (unsigned char)0, default: 0.0f))
#ifdef MY_OBS_FULL
_Static_assert(sizeof(PUFFER_OBS) == sizeof(obs_t), "MY_OBS_FULL can't be used with bf16");
#endif

// Record the running environment, so that a failed assertion can name it.
#define PUFFER_ENTER() int* const puffer_at = puffer_place()
#define PUFFER_AT(env) (*puffer_at = (env))

#ifdef PUF_HAS_BOT_POLICY
#define PUFFER_SET_BOT puffer_set_bot
#else
#define PUFFER_SET_BOT NULL
#endif
#define PUFFER_SEAT_POLICIES puffer_seat_policies
#define PUFFER_SET_TAG puffer_set_tag

// ---- Masks --------------------------------------------------------------------------------------
//
// In 5.0 every environment has masks: a byte for every choice of every head, 1 until the environment
// writes another value. Here an environment has masks only if its sources mention action_mask
// (PUFFER_MASKS; vec/native scans them). Masks of continuous actions may be written and are unused.

static inline size_t puffer_choices(void) {
    static const int sizes[] = ACT_SIZES;
    size_t sum = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(int); i++) {
        sum += (size_t)sizes[i];
    }
    return sum;
}

#ifdef PUFFER_MASKS
#define PUFFER_OWN_MASK_SIZE puffer_choices()
#define PUFFER_MASK_SIZE (puffer_choices() == (NUM_ATNS) ? 0 : puffer_choices())
#else
#define PUFFER_OWN_MASK_SIZE ((size_t)0)
#define PUFFER_MASK_SIZE ((size_t)0)
#endif
#define PUFFER_FIXED_MASK_SIZE 0  // C can't sum ACT_SIZES at compile time, so a constructor sets it

static void puffer_count_choices(void) __attribute__((constructor));

// ---- Agents -------------------------------------------------------------------------------------

#define PUFFER_AGENTS_ELSEWHERE _Generic(&((Env*)0)->agents, Agent**: true, default: false)
#define PUFFER_ROOM (sizeof(((Env*)0)->agents) / sizeof(Agent))

// Check that an environment's array of agents has room for the number of agents that puf_init has
// set. Fails otherwise.
static inline void puffer_check_agents(const Env* env) {
    if (PUFFER_AGENTS_ELSEWHERE ? (const void*)env->agents == NULL
                                : env->num_agents > (int)PUFFER_ROOM) {
        puffer_fail(PUFFER_ASSERTED, "num_agents is %d, but agents has room for %d",
                    env->num_agents, PUFFER_AGENTS_ELSEWHERE ? 0 : (int)PUFFER_ROOM);
    }
}

// Set the pointers of an environment's agents to their rows. Rows are in the order of environments
// and agents, also in self-play, where each policy gathers its rows. Upstream orders rows by policy
// then.
static void puffer_bind_env(StaticVec* vec, int index, int agent) {
    Env* env = &((Env*)vec->envs)[index];
    const size_t mask = PUFFER_OWN_MASK_SIZE;
    for (int i = 0; i < env->num_agents; i++) {
        const size_t row = (size_t)agent + (size_t)i;
        Agent* seat = &env->agents[i];
        seat->observations = (obs_t*)vec->observations + row * (OBS_SIZE);
        seat->actions = vec->actions + row * (NUM_ATNS);
        seat->rewards = vec->rewards + row;
        seat->terminals = vec->terminals + row;
        seat->action_mask = mask == 0 ? NULL : vec->action_mask + row * mask;
        if (mask > 0) {
            memset(seat->action_mask, 1, mask);
        }
    }
    env->tag = 0;
    env->boundary_reached = 0;
}

#ifdef MY_OBS_FULL
static inline void puffer_write_observations_to(Env* env, unsigned char* rows) {
    for (int i = 0; i < env->num_agents; i++) {
        env->agents[i].observations = (obs_t*)(void*)rows + (size_t)i * (OBS_SIZE);
    }
}
#endif

// The pointers to the rows, which are no part of a state.
typedef struct {
    __typeof__(((Env*)0)->agents) agents;
} PufferPointers;

static inline PufferPointers puffer_pointers(const Env* env) {
    PufferPointers pointers;
    memcpy(&pointers.agents, &env->agents, sizeof(pointers.agents));
    return pointers;
}

static inline void puffer_point(Env* env, const PufferPointers* to) {
    memcpy((void*)&env->agents, &to->agents, sizeof(env->agents));
}

// But which of an environment's rows is whose, and whose seat it is, belongs to a state: an
// environment may keep its agents in another order than at first.
typedef struct {
    int row;
    int policy;
} PufferSeat;

#define PUFFER_SEAT_BYTES(env) ((size_t)(env)->num_agents * sizeof(PufferSeat))

static inline Agent puffer_first_row(const Env* env) {
    Agent first = env->agents[0];
    for (int i = 1; i < env->num_agents; i++) {
        first = env->agents[i].rewards < first.rewards ? env->agents[i] : first;
    }
    return first;
}

static inline void puffer_write_seats(const Env* env, char* to) {
    const Agent first = puffer_first_row(env);
    for (int i = 0; i < env->num_agents; i++) {
        const Agent* agent = &env->agents[i];
        const PufferSeat seat = {(int)(agent->rewards - first.rewards), agent->policy};
        memcpy(to + (size_t)i * sizeof(seat), &seat, sizeof(seat));
    }
}

static inline bool puffer_read_seats(Env* env, const char* from) {
    const Agent first = puffer_first_row(env);
    for (int i = 0; i < env->num_agents; i++) {
        PufferSeat seat;
        memcpy(&seat, from + (size_t)i * sizeof(seat), sizeof(seat));
        if (seat.row < 0 || seat.row >= env->num_agents) {
            return false;
        }
        const size_t row = (size_t)seat.row;
        const size_t mask = row * PUFFER_OWN_MASK_SIZE;
        env->agents[i] = (Agent){
            .observations = first.observations + row * (OBS_SIZE),
            .actions = first.actions + row * (NUM_ATNS),
            .rewards = first.rewards + row,
            .terminals = first.terminals + row,
            .action_mask = first.action_mask == NULL ? NULL : first.action_mask + mask,
            .policy = seat.policy,
        };
    }
    return true;
}

// Write which policy plays each agent of an environment: agents[i].policy at the row of agent i.
static void puffer_seat_policies(const StaticVec* vec, int index, int* policies) {
    const Env* env = &((const Env*)vec->envs)[index];
    for (int i = 0; i < env->num_agents; i++) {
        policies[env->agents[i].rewards - vec->rewards] = env->agents[i].policy;
    }
}

static void puffer_set_tag(StaticVec* vec, int index, int tag) {
    ((Env*)vec->envs)[index].tag = tag;
}

// ---- The rest -----------------------------------------------------------------------------------

#ifdef PUF_HAS_BOT_POLICY
static void puffer_set_bot(StaticVec* vec, int env, int policy) {
    puf_set_bot_policy(&((Env*)vec->envs)[env], policy);
}
#endif

#ifndef PUF_STEPS_PER_SEC
#define PUF_STEPS_PER_SEC 60
#endif

// Draw an environment in its window, and wait so that at most PUF_STEPS_PER_SEC pictures are drawn
// per second, as upstream's player does.
static inline void puffer_render_in_time(Env* env) {
#ifdef PUFFER_WINDOW
    static double next = 0.0;
    puf_render(env);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    const double wait = next - at;
    if (wait > 0.0 && wait < 10.0) {
        const time_t whole = (time_t)wait;
        nanosleep(&(struct timespec){whole, (long)(1e9 * (wait - (double)whole))}, NULL);
    }
    next = (wait > 0.0 ? next : at) + 1.0 / (double)(PUF_STEPS_PER_SEC);
#else
    puf_render(env);
#endif
}

#ifdef MY_VEC_INIT
Env* my_vec_init(int* num_envs, int* env_starts, int* env_counts, Dict* vec_kwargs,
                 Dict* env_kwargs);
#endif
#ifdef MY_VEC_CLOSE
void my_vec_close(Env* envs);
#endif

#include "glue.h"

static void puffer_count_choices(void) {
    puffer_ops.mask_size = (int)PUFFER_MASK_SIZE;
    puffer_ops.own_mask_size = (int)PUFFER_OWN_MASK_SIZE;
}

#endif  // PUFFER_GLUE_5_H
