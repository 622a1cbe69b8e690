// StaticVec of PufferLib 4.0: all environments and their rows. Contains the members that an
// environment's my_vec_init and my_setup_perm may read (see vecenv.h).

#ifndef PUFFER_STATIC_VEC_H
#define PUFFER_STATIC_VEC_H

typedef struct StaticThreading StaticThreading;

typedef struct StaticVec {
    void* envs;              // Env[size]
    int size;                // number of environments
    int total_agents;        // N
    int buffers;             // Q, the number of groups
    int agents_per_buffer;   // N / Q
    int* buffer_env_starts;  // (Q,) first environment of a group
    int* buffer_env_counts;  // (Q,) environments of a group
    void* observations;      // (N, OBS_SIZE)
    float* actions;          // (N, NUM_ATNS)
    float* rewards;          // (N,)
    float* terminals;        // (N,)
    unsigned char* action_mask;      // (N, action_mask_size), NULL without masks
    void* gpu_observations;          // gpu_ members have the same addresses as above
    float* gpu_actions;
    float* gpu_rewards;
    float* gpu_terminals;
    unsigned char* gpu_action_mask;
    void** streams;                  // NULL
    StaticThreading* threading;      // NULL
    int obs_size;
    int num_atns;
    int action_mask_size;            // 0 without masks
    int gpu;                         // 0
    int* agent_perm;                 // NULL: agent i is in row i
    unsigned int* random;            // (size,) state of each environment's rand; not in 4.0
} StaticVec;

#endif
