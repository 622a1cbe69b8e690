// Kernel that computes a complete rollout: T steps of a policy and of the environments. A block runs all steps of its agents without
// waiting for the host or for another block. text.py builds the source for a network and an environment.
//
// Inputs and outputs of a step are those of functions.metal.h, for T steps. SEEN, HEADS and LEGAL: sizes of an observation, an
// action and a mask (1 without masks). An environment has WORDS words; LOGS words from LOG on are its log, which is cleared first.
// `first_*` (n, ...): outputs of the environments before the rollout. all_observations (T, n, D) are those that the policy acted on,
// last_observations (n, D) those after the last step; rewards, terminals and masks have T + 1 rows. horizon: T and n.
//
// With PLAYERS > 0, an environment has PLAYERS agents, and several policies may act. A block has R GROUPS environments. In each step
// it acts for the first agent of all of them, then for the second, and so on: `block_rows` (blocks, PLAYERS, 1 + R GROUPS). A policy
// plays the same agents in all environments of a block. A repeated environment is played twice with the same results; a LARGE one,
// which is stepped in place, can't be.
//
// An environment is stepped by one thread. These threads are far apart, so that they don't wait for each other's branches. If starting
// an episode is slow, all threads of the block start it together (c_begin of envs/include/vecenv.h), except on Metal, where an
// environment is in the memory of its thread.

#include "layers"
#include "gpu/acting/choose.metal.h"
#include "gpu/acting/encode.metal.h"
#include "gpu/acting/rules.kernel.h"
#ifndef __METAL_VERSION__
#define BEGINS_LATER
#endif
#include "rules"
#include "gpu/acting/stepping.kernel.h"

KERNEL rollout<Low, R, GROUPS, THREADS, RESIDENT, ROOM, PLAYERS, SEEN, HEADS, LEGAL, WORDS, LARGE, LOG, LOGS>:
  Low first_observations, float first_rewards first_terminals, uint8_t first_masks, int games, float states_before all_noise
  weights, int sizes horizon block_rows
  -> Low all_observations last_observations, float all_rewards all_terminals, uint8_t all_masks, float all_actions
  all_logprobs all_values, int games_after, float after {
  SHARED Rows<R> room[ROOM];
  constexpr uint WORLDS = R * GROUPS, APART = THREADS / WORLDS, EACH = PLAYERS > 0 ? PLAYERS : 1, AGENTS = WORLDS * EACH;
  Step<R, GROUPS, THREADS, PLAYERS> step(sizes, block_rows, weights, room, me, block * EACH);
  static_assert(sizeof(Game) == 4 * WORDS, "a GPU lays the environment's struct out in another way");
  static_assert(PLAYERS == 0 || !LARGE, "a large environment can't be played twice");
  SHARED Low rows[AGENTS * SEEN];
  SHARED float acted[AGENTS * HEADS];
  SHARED float rewarded[AGENTS];
  SHARED float ended[AGENTS];
  SHARED uint8_t allowed[AGENTS * LEGAL];
  uint T = (uint)horizon[0], n = (uint)horizon[1];
  uint worlds = step.n - step.first < WORLDS ? step.n - step.first : WORLDS;
  uint slot = me / APART;  // environment of this thread
  bool steps = me % APART == 0 && slot < worlds;
  uint player = steps ? step.place(slot) : 0;  // first agent of the environment
  DECLARE_ENV(storage, WORDS, LARGE, games_after + player / EACH * WORDS)

  for (uint k = me; k < AGENTS * SEEN; k += THREADS) {
    uint at = k / SEEN;
    rows[k] = at / EACH < worlds ? first_observations[(step.place(at / EACH) + at % EACH) * SEEN + k % SEEN] : (Low)0;
  }
  if (steps) {
    load_env<WORDS, EACH, SEEN, HEADS, LEGAL, LOG, LOGS>(storage, games, slot, player / EACH, rows, acted, rewarded, ended, allowed,
                                                         first_rewards, first_terminals, first_masks, all_rewards,
                                                         all_terminals, all_masks);
  }
  DEVICE_BARRIER

  for (uint t = 0; t < T; ++t) {
    step.terminals = all_terminals + t * n;
    step.mask = all_masks + t * n * LEGAL;
    step.noise = all_noise + t * n * HEADS;
    step.states = t == 0 ? states_before : (IN_DEVICE const float*)after;
    step.after = after;
    step.actions = all_actions + t * n * HEADS;
    step.logprobs = all_logprobs + t * n;
    step.values = all_values + t * n;
    for (uint agent = 0; agent < EACH; ++agent) {
      if (PLAYERS > 0) step.turn_to(block_rows, weights, block * EACH + agent);
      encode<0>(step, (IN_SHARED const Low*)rows, agent, EACH, all_observations + t * n * SEEN);
      layers(step);
      choose(step);
    }
    DEVICE_BARRIER
    if (steps)
      step_env<WORDS, LARGE, EACH, HEADS, LEGAL>(storage, slot, (t + 1) * n + player, step.actions + player * HEADS, acted, rewarded,
                                             ended, allowed, all_rewards, all_terminals, all_masks);
    DEVICE_BARRIER
#if defined(BEGINS_LATER) && defined(BEGIN_STAGES)
    static_assert(LARGE, "a block's threads reach no environment that one of them has in registers");
    for (uint at = 0; at < worlds; ++at) {
      if (ended[at] == 0.0f) continue;
      auto world = (EnvStorage<WORDS>*)(void*)(games_after + (step.first + at) * WORDS);
      for (int stage = 0; stage < BEGIN_STAGES; ++stage) {
        begin_env(&world->env, stage, (int)me, (int)THREADS);
        DEVICE_BARRIER
      }
    }
#endif
  }

  if (PLAYERS > 0) step.turn_to(block_rows, weights, block * EACH);
  for (uint k = me; k < AGENTS * SEEN; k += THREADS) {
    uint at = k / SEEN;
    if (at / EACH < worlds) last_observations[(step.place(at / EACH) + at % EACH) * SEEN + k % SEEN] = rows[k];
  }
  if (steps) store_env<LARGE>(storage, games_after + player / EACH * WORDS);
}
