// The contract between an environment of PufferLib 4.0 and the stepper, the code in envs/src that
// steps many environments at once. Names are upstream's.
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
//     unsigned int rng            seeded before my_init; the state of every rand_r. If it is a
//                                 pointer, as in some environments, it is not touched
//     unsigned char* action_mask  with MY_ACTION_MASK: num_agents rows, non-zero where legal
//
// and these functions: c_reset(Env*), c_step(Env*), c_render(Env*), c_close(Env*). c_step resets an
// environment whose episode ended, so observations are then the first of the next one. The stepper
// allocates the rows and changes none of them but rewards, terminals and actions between steps, so
// an environment may update its observations in place.
//
// Optional macros, defined before this file is included:
//
//     MY_ACTION_MASK n     action_mask has n bytes per agent: the sum of ACT_SIZES
//     MY_VEC_INIT          the binding has my_vec_init, which creates all environments
//     MY_VEC_CLOSE         the binding has my_vec_close; called after every c_close
//     MY_VEC_STEP_RANGE    names a function (StaticVec*, int first, int count, int workers) that
//                          steps those environments instead of c_step; workers is 1 here
//     MY_VEC_STEP          accepted and unused: upstream calls it outside of its native trainer.
//                          Here c_step or the function of MY_VEC_STEP_RANGE is called
//     MY_SHARED, MY_SHARED_CLOSE, MY_GET, MY_PUT    accepted and unused, as in 4.0
//     MY_USES_PERM         my_setup_perm is called once per environment (agent_perm stays NULL)
//     MY_USES_TAGS         int tag is set: in self-play to the number of the opponent that plays one
//                          of the teams, else to 0. int boundary_reached is not used: terminals
//                          show where an episode ended
//     MY_OBS_FULL          ours: c_reset and c_step write every observation element every time, so
//                          observations may point straight at the trainer's row (no copy); it
//                          is valid only inside c_reset and c_step
//     MY_OBS_SHAPE {h, w, c}   ours: observations are images, flat in the order height, width,
//                          channels; the product is OBS_SIZE
//     MY_GPU "NAME.h"      ours: GPUs can run the header's rules; see below
//     MY_STATE_PLAIN, MY_STATE   ours: training can be resumed in the middle of episodes; see below
//
// State. A resumed run continues bit by bit if its environments can be saved: if all they know between
// two steps is in the struct, in memory that the struct owns, and in the rows above. The stepper
// saves the rows, the log, rng and the generator of rand, and never the pointers to the rows. For the
// rest a binding defines one of
//
//     MY_STATE_PLAIN       the struct has no pointers but those above, so its bytes are its state
//     MY_STATE             the binding defines three functions:
//         size_t my_state_size(const Env*)                      bytes needed at this moment
//         void my_save_state(const Env*, void* to)              write them; `to` is all 0
//         bool my_load_state(Env*, const void* from, size_t)    read them, after my_init and perhaps
//                          a c_reset. The size is the one that was written, which may differ from
//                          the present my_state_size. Return false if it doesn't fit; c_reset must
//                          then still work. Both addresses are aligned to 16 bytes. Write no
//                          pointers, so that equal states have equal bytes
//
// Without these macros, environments are reset when training is resumed. Constants from the
// configuration needn't be saved: the state is refused if they, num_agents, or the code have changed.
//
// A GPU steps environments together with the policy if their rules compile for it. They may use what
// C, Metal and CUDA have in common:
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
// An episode with a slow start, such as a map generated from noise, makes a GPU's other threads wait.
// They share the work if the header (for one agent, with a struct of more than 255 words) has
//
//     BEGIN_STAGES n       and c_begin(Env*, int stage, int part, int parts), which computes one part
//                          of stages 0 to n - 1. A stage begins when all parts of the previous stage
//                          are done. Results must not depend on `parts`. With BEGINS_LATER defined,
//                          c_step only sets a terminal, and c_begin is called after it; otherwise
//                          c_step calls all stages, as part 0 of 1
//
// Differences from upstream:
//   - A missing key doesn't abort (dict_get), a bad value can be refused (dict_reject), and counts
//     that don't add up are errors.
//   - Threads step environments without OpenMP. Its pragmas are ignored, except those that protect
//     shared data (critical, atomic).
//   - rand_r is glibc's algorithm on every platform (src/rand_r.c). rand and raylib's GetRandomValue
//     use a separate generator for each environment.
//   - Data files named relative to the repository's root are found from any working directory. exit
//     and abort don't end Python: they are an error while environments are created, reset or
//     stepped, and close the window while they are drawn (src/host.h).
//   - Only binding.c is compiled, as upstream does. NAME.c is a separate program there.
//   - raylib.h, raymath.h and rlgl.h are raylib's if it is installed, otherwise stand-ins in raylib/
//     that draw nothing.

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

// ---- Dict (puffer_dict.h). Keys aren't copied and must outlive it: use literals. --------------------

Dict* create_dict(int capacity);

// Return the item of a key, or NULL.
DictItem* dict_get_unsafe(Dict* dict, const char* key);

// Return the item of a key, never NULL. A missing key gets value 0 and is recorded: creating the
// environments then fails with the names of all missing keys.
DictItem* dict_get(Dict* dict, const char* key);

// Set a key of a dictionary to a number; a missing key is appended.
void dict_set(Dict* dict, const char* key, double value);

// Reject the value of a configuration key in my_init (not in upstream). `expected`, a literal, says
// what is legal. Creation of the environments fails with a message after this my_init returns.
// c_close is still called, c_reset isn't. Guard calls with #ifdef PUFFER_MLX.
void dict_reject(Dict* dict, const char* key, const char* expected);

#ifdef __cplusplus
}
#endif

#endif  // PUFFER_VECENV_H

// The loops over environments need Env, so only a binding, which defines OBS_SIZE, includes them.
#if defined(OBS_SIZE) && !defined(PUFFER_GLUE_H)
#include "../src/glue_4.h"
#endif
