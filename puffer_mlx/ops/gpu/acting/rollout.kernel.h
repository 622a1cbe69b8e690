// A whole rollout as one kernel: T steps of a policy, and of the environments between them. A block takes its agents through
// all of them; nobody waits for the host, or for another block. Made for a network and an environment: text.py.
//
// What a step reads and writes is as functions.metal.h says, of each of T steps. SEEN, HEADS and LEGAL are the sizes of a row
// of observations, of actions, and of a mask (1 without); an environment is WORDS words, of which LOGS from LOG on are its
// log, which is emptied first. `first_*` (n, ...) is what arrived before the rollout. Observations (T, n, D) are those that
// actions are chosen from, last_observations (n, D) the ones behind them; rewards, terminals and masks have T + 1 rows.
//
// An agent's environment is stepped by one thread; neighbours in that are far apart, so that they take different ways at
// the same time.

#include "layers"
#include "gpu/acting/choose.metal.h"
#include "gpu/acting/encode.metal.h"
#include "gpu/acting/rules.kernel.h"
#include "rules"

KERNEL rollout<Low, R, GROUPS, THREADS, ROOM, SEEN, HEADS, LEGAL, WORDS, LOG, LOGS>: Low first_observations, float
  first_rewards first_terminals, uint8_t first_masks, int games, float states_before all_noise weights, int sizes horizon
  -> Low all_observations last_observations, float all_rewards all_terminals, uint8_t all_masks, float all_actions
  all_logprobs all_values, int games_after, float after {
  SHARED Rows<R> room[ROOM];
  Step<R, GROUPS, THREADS, 0> step(sizes, sizes, weights, room, me, block);
  uint n = step.n, first = step.first;
  constexpr uint AGENTS = R * GROUPS, APART = THREADS / AGENTS;
  static_assert(sizeof(Game) == 4 * WORDS, "a GPU lays the environment's struct out in another way");
  SHARED Low rows[AGENTS * SEEN];
  SHARED float acted[AGENTS * HEADS];
  SHARED float rewarded[AGENTS];
  SHARED float ended[AGENTS];
  SHARED uint8_t allowed[AGENTS * LEGAL];
  uint T = (uint)horizon[0];
  uint slot = me / APART, player = first + slot;  // whose environment this thread steps
  bool steps = me % APART == 0 && slot < AGENTS && player < n;
  union Held {
    int words[WORDS];
    Game env;
  } held;

  for (uint k = me; k < AGENTS * SEEN; k += THREADS) {
    bool in = first + k / SEEN < n;
    rows[k] = in ? first_observations[first * SEEN + k] : (Low)0;
  }
  if (steps) {
    for (uint word = 0; word < WORDS; ++word) held.words[word] = games[player * WORDS + word];
    for (uint word = LOG; word < LOG + LOGS; ++word) held.words[word] = 0;
    held.env.observations.at = rows + slot * SEEN;
    held.env.actions.at = acted + slot * HEADS;
    held.env.rewards.at = rewarded + slot;
    held.env.terminals.at = ended + slot;
    all_rewards[player] = first_rewards[player];
    all_terminals[player] = first_terminals[player];
#ifdef MASKED
    held.env.action_mask.at = allowed + slot * LEGAL;
    for (uint k = 0; k < LEGAL; ++k) {
      uint8_t before = first_masks[player * LEGAL + k];
      allowed[slot * LEGAL + k] = before;
      all_masks[player * LEGAL + k] = before;
    }
#endif
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
    encode(step, (IN_SHARED const Low*)rows, 0, all_observations + t * n * SEEN);
    layers(step);
    choose(step);
    DEVICE_BARRIER
    if (steps) {
      for (uint k = 0; k < HEADS; ++k) acted[slot * HEADS + k] = step.actions[player * HEADS + k];
      rewarded[slot] = 0.0f;
      ended[slot] = 0.0f;
      game::c_step(&held.env);
      uint next = (t + 1) * n + player;
      all_rewards[next] = rewarded[slot];
      all_terminals[next] = ended[slot];
#ifdef MASKED
      for (uint k = 0; k < LEGAL; ++k) all_masks[next * LEGAL + k] = allowed[slot * LEGAL + k];
#endif
    }
    DEVICE_BARRIER
  }

  for (uint k = me; k < AGENTS * SEEN; k += THREADS) {
    if (first + k / SEEN < n) last_observations[first * SEEN + k] = rows[k];
  }
  if (steps) {
    held.env.observations.at = 0;
    held.env.actions.at = 0;
    held.env.rewards.at = 0;
    held.env.terminals.at = 0;
#ifdef MASKED
    held.env.action_mask.at = 0;
#endif
    for (uint word = 0; word < WORDS; ++word) games_after[player * WORDS + word] = held.words[word];
  }
}
