// Kernel that steps all environments once, for policies that act in other launches (rollout/in_steps.py).
//
// There are n environments (`count`) of PLAYERS agents with adjacent rows: SEEN numbers of an observation, HEADS actions, LEGAL
// bytes of a mask (1 without masks). An environment updates its rows in place, so they start as copies of the old ones; rewards and
// terminals start as zeros. Structs are stored word by word, (WORDS, n), so that adjacent threads read adjacent memory.
//
// A thread steps one environment in its private memory. Only one of APART threads does so, because adjacent threads that take
// different branches wait for each other.

#define IN_ROWS IN_DEVICE
#include "gpu/acting/rules.kernel.h"
#include "rules"
#include "gpu/acting/stepping.kernel.h"

KERNEL step<Low, THREADS, APART, PLAYERS, SEEN, HEADS, LEGAL, WORDS, LARGE>:
  Low observations_before, uint8_t masks_before, float actions, int games count
  -> Low observations, float rewards terminals, uint8_t masks, int games_after {
  constexpr uint TOGETHER = THREADS / APART;
  static_assert(sizeof(Game) == 4 * WORDS, "a GPU lays the environment's struct out in another way");
  uint n = (uint)count[0], first = block * TOGETHER, environment = first + me / APART;
  uint rest = n - first, agents = (rest < TOGETHER ? rest : TOGETHER) * PLAYERS, row = first * PLAYERS;
  for (uint k = me; k < agents * SEEN; k += THREADS) observations[row * SEEN + k] = observations_before[row * SEEN + k];
  for (uint k = me; k < agents; k += THREADS) rewards[row + k] = terminals[row + k] = 0.0f;
#ifdef MASKED
  for (uint k = me; k < agents * LEGAL; k += THREADS) masks[row * LEGAL + k] = masks_before[row * LEGAL + k];
#endif
  DEVICE_BARRIER
  if (me % APART != 0 || environment >= n) return;
  EnvStorage<WORDS> storage;
  for (uint word = 0; word < WORDS; ++word) storage.words[word] = games[word * n + environment];
  row = environment * PLAYERS;
  take_rows(storage, observations + row * SEEN, (IN_ROWS float*)actions + row * HEADS, rewards + row, terminals + row,
            masks + row * LEGAL);
  step_game<LARGE>(storage);
  leave_rows(storage);
  for (uint word = 0; word < WORDS; ++word) games_after[word * n + environment] = storage.words[word];
}
