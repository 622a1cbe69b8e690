// A step of all environments as one kernel, where a policy's step is launches of its own: rollout/in_steps.py.
//
// There are n environments (`count`) of SEATS agents each, whose rows are neighbours: SEEN numbers of an observation, HEADS
// actions, LEGAL bytes of a mask (1 without). An environment may change its rows where they are, so the new ones begin as
// copies of those before; rewards and terminals begin as zeros. Structs lie word by word, (WORDS, n): what neighbours read at
// a time is one piece of memory.
//
// A thread steps one environment, in its own memory; of APART threads one, as neighbours that take different ways wait for
// each other.

#define IN_ROWS IN_DEVICE
#include "gpu/acting/rules.kernel.h"
#include "rules"
#include "gpu/acting/seat.kernel.h"

KERNEL step<Low, THREADS, APART, SEATS, SEEN, HEADS, LEGAL, WORDS, LARGE>:
  Low observations_before, uint8_t masks_before, float actions, int games count
  -> Low observations, float rewards terminals, uint8_t masks, int games_after {
  constexpr uint TOGETHER = THREADS / APART;
  static_assert(sizeof(Game) == 4 * WORDS, "a GPU lays the environment's struct out in another way");
  uint n = (uint)count[0], first = block * TOGETHER, environment = first + me / APART;
  uint rest = n - first, agents = (rest < TOGETHER ? rest : TOGETHER) * SEATS, row = first * SEATS;
  for (uint k = me; k < agents * SEEN; k += THREADS) observations[row * SEEN + k] = observations_before[row * SEEN + k];
  for (uint k = me; k < agents; k += THREADS) rewards[row + k] = terminals[row + k] = 0.0f;
#ifdef MASKED
  for (uint k = me; k < agents * LEGAL; k += THREADS) masks[row * LEGAL + k] = masks_before[row * LEGAL + k];
#endif
  DEVICE_BARRIER
  if (me % APART != 0 || environment >= n) return;
  Held<WORDS> held;
  for (uint word = 0; word < WORDS; ++word) held.words[word] = games[word * n + environment];
  row = environment * SEATS;
  take_rows(held, observations + row * SEEN, (IN_ROWS float*)actions + row * HEADS, rewards + row, terminals + row,
            masks + row * LEGAL);
  step_game<LARGE>(held);
  leave_rows(held);
  for (uint word = 0; word < WORDS; ++word) games_after[word * n + environment] = held.words[word];
}
