// vecenv.h: the contract between an environment and the batch stepper (names as in PufferLib 4.0).
//
// An environment is a folder with NAME.h (a struct and its functions) and binding.c:
//
//     #include "NAME.h"
//     #define OBS_SIZE 121               // observation elements per agent
//     #define NUM_ATNS 1                 // actions per agent (heads)
//     #define ACT_SIZES {5}              // choices of each head; all 1 means continuous
//     #define OBS_TENSOR_T ByteTensor    // or FloatTensor; PrecisionTensor is FloatTensor here
//     #define Env Name                   // the struct
//     #include "vecenv.h"
//     void my_init(Env* env, Dict* kwargs) { ... }   // read kwargs, set num_agents, allocate
//     void my_log(Log* log, Dict* out) { ... }       // copy fields with dict_set
//
// The struct needs these members, in any order:
//
//     Log log;                    floats only, one of them n; added to when an episode ends (n += 1)
//     observations                float* or unsigned char*: num_agents rows of OBS_SIZE
//     float* actions              num_agents rows of NUM_ATNS; discrete choices are whole numbers
//     float* rewards              num_agents; zero when c_step begins, so c_step may accumulate
//     float* terminals            num_agents; zero when c_step begins; 1 where an episode ended
//     int num_agents              set by my_init, the same for the life of the environment
//     unsigned int rng            seeded before my_init; the state of every rand_r. A pointer, as
//                                 some have, is left alone
//     unsigned char* action_mask  with MY_ACTION_MASK: num_agents rows, non-zero where legal
//
// and these functions: c_reset(Env*), c_step(Env*), c_render(Env*), c_close(Env*). c_step resets an
// environment whose episode ended, so observations are then the first of the next one. The rows
// behind the pointers belong to the stepper and are the environment's own: what it wrote in one
// step is still there in the next, so it may update observations in place.
//
// Optional macros, defined before this file is included:
//
//     MY_ACTION_MASK n     action_mask has n bytes per agent: the sum of ACT_SIZES
//     MY_VEC_INIT          the binding has its own my_vec_init
//     MY_VEC_CLOSE         the binding has my_vec_close; called after every c_close
//     MY_VEC_STEP_RANGE    names a function (StaticVec*, int first, int count, int workers) that
//                          steps those environments instead of c_step; workers is 1 here
//     MY_VEC_STEP          accepted; upstream steps everything at once with it, but not in its
//                          native trainer. Here c_step is called, or the function of the range
//     MY_SHARED, MY_SHARED_CLOSE, MY_GET, MY_PUT    accepted; nothing here calls them, and nothing
//                          in 4.0 does
//     MY_USES_PERM         my_setup_perm is called once per environment (agent_perm stays NULL)
//     MY_USES_TAGS         int tag is set: in self-play to b where opponent b plays one of the teams, else
//                          to 0. int boundary_reached is left alone: that an episode has ended, its
//                          terminals say
//     MY_OBS_FULL          ours: c_reset and c_step write every observation element every time, so
//                          observations may point straight at the trainer's row (no copy); it
//                          is valid only inside c_reset and c_step
//     MY_OBS_SHAPE {h, w, c}   ours: observations are images, flat in the order height, width,
//                          channels; the product is OBS_SIZE
//     MY_GPU "NAME.h"      ours: the header's rules compile for a GPU, too; see below
//     MY_STATE_PLAIN, MY_STATE   ours: training can be resumed in the middle of episodes; see below
//
// State. A run that is resumed goes on with the bits it would have had, if its environments can be
// saved: if everything they know between two steps is in the struct, in memory the struct owns and
// in the rows above. The stepper always saves the rows, log and rng, and what rand draws from, and
// never touches the pointers to the rows. For the rest a binding chooses one of
//
//     MY_STATE_PLAIN       the struct holds no pointers but those above: its bytes are its state
//     MY_STATE             the binding defines three functions:
//         size_t my_state_size(const Env*)                      bytes needed at this moment
//         void my_save_state(const Env*, void* to)              write them; `to` is all 0
//         bool my_load_state(Env*, const void* from, size_t)    the inverse, after my_init, with or
//                          without a c_reset before. The size is what was written, so it may differ
//                          from my_state_size of now. False if that can't be; c_reset must then
//                          still work. Both addresses are aligned to 16 bytes. Write no pointers,
//                          so that equal states are equal bytes
//
// With neither, environments start anew when training is resumed. Constants from the configuration
// needn't be saved: the state is refused if they, num_agents, or the code have changed.
//
// A GPU steps environments itself, together with the policy, if their rules compile there. What they
// may use is what C, Metal and CUDA have in common:
//
//     ENV_FN                 begins every function, ENV_PTR follows the type that a pointer to the struct
//                          or to a local variable points to (Name ENV_PTR* env), ENV_ROWS(float) and
//                          ENV_ROWS(unsigned char) are the types of observations, actions, rewards,
//                          terminals and action_mask. The header defines the three for a CPU, and
//                          includes what it includes, inside #ifndef ENV_FN
//     MY_STATE_PLAIN       the struct is its own state: no pointers but the rows
//     num_agents           the same in all environments
//     TABLE                begins an array of constants, outside of functions
//     no double, no static variables, no library but rand_r, fabsf, sinf,
//     cosf, sqrtf, expf, logf, floorf, ceilf; no compound literals or designated initialisers
//
// An episode that takes long to begin, as a map does that is made of noise, keeps a GPU's other threads
// waiting. They do it together where the header (of one agent, and a struct of more than 255 words) has
//
//     BEGIN_STAGES n       and c_begin(Env*, int stage, int part, int parts): part 0 to parts - 1 of stages 0
//                          to n - 1, of which one begins when all parts of the one before are done. Results
//                          may not depend on `parts`. With BEGINS_LATER defined c_step leaves this to be
//                          called where it sets a terminal; else it calls all stages, as part 0 of 1
//
// What differs from upstream: a missing key doesn't abort (dict_get), a bad value can be refused
// (dict_reject), counts that don't add up are errors, and threads step environments without OpenMP,
// whose pragmas are comments unless one protects what environments share (critical, atomic).
// rand_r is glibc's algorithm on every platform (src/rand_r.c), rand and raylib's GetRandomValue
// draw from a generator that each environment has to itself, data files named from the repository's
// root are found from any working directory, and exit and abort are an error while environments are
// created, reset or stepped, and the end of drawing while they are drawn, not the end of Python
// (src/host.h). binding.c alone is compiled, as upstream does: NAME.c is a program of its own there.
// raylib.h, raymath.h and rlgl.h are raylib's own where it is installed, otherwise the ones in
// raylib/, which draw nothing.

#ifndef PUFFER_VECENV_H
#define PUFFER_VECENV_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "puffer_dict.h"
#include "puffer_static_vec.h"
#include "tensor.h"

#define PUFFER_MLX 1  // lets a binding use our additions and still compile under upstream

#ifdef __cplusplus
extern "C" {
#endif

// ---- Dict: puffer_dict.h. Keys aren't copied: literals, or text that outlives it. -------------------

Dict* create_dict(int capacity);

// The item of a key, or NULL.
DictItem* dict_get_unsafe(Dict* dict, const char* key);

// The item of a key. Never NULL: a key that isn't there gets value 0 and is remembered as missing,
// and creating the environments fails with the names of all such keys.
DictItem* dict_get(Dict* dict, const char* key);

// Set or append.
void dict_set(Dict* dict, const char* key, double value);

// Ours: refuse the value of a key in my_init. Creation fails after this my_init returns, saying
// what was expected (a literal). c_close is still called, c_reset isn't. Guard calls with
// #ifdef PUFFER_MLX.
void dict_reject(Dict* dict, const char* key, const char* expected);

#ifdef __cplusplus
}
#endif

#endif  // PUFFER_VECENV_H

// The part that needs to know Env; only a binding, which defines OBS_SIZE, gets it.
#if defined(OBS_SIZE) && !defined(PUFFER_GLUE_H)
#include "../src/glue_4.h"
#endif
