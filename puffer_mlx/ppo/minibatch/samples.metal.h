// Functions for the rows of a minibatch that one block computes: targets, live advantages, loss, and gradients of the weights.

#pragma once

#include "../closed_form/sample.metal.h"
#include "advantages/step.metal.h"
#include "gpu/matrix.metal.h"

// Return the index, in arrays (T, S), of the sample that a thread block processes in a row of a chunk (some steps of some
// segments).
template <int SEGMENTS, int STEPS>
FUNCTION uint sample_of(int row, int chunk, uint segment, uint S) {
  return (uint)(chunk * STEPS + row / SEGMENTS) * S + segment + (uint)(row % SEGMENTS);
}

// Constants and state of a block that processes SEGMENTS segments at a time, in chunks of STEPS of the T steps. Row t SEGMENTS + s of a
// chunk is step t of segment s. The functions below aren't members, because Metal can't pass members of a struct to functions: their
// address space is unknown.
template <int T_, int H, int A_, int HEADS_, int MASKED_, int LIVE_, int SEGMENTS_, int STEPS_, int THREADS_>
struct BlockRows {
  static constexpr int T = T_, A = A_, HEADS = HEADS_, MASKED = MASKED_, LIVE = LIVE_;
  static constexpr int SEGMENTS = SEGMENTS_, STEPS = STEPS_, THREADS = THREADS_;
  static constexpr int M = SEGMENTS * STEPS, CHUNKS = T / STEPS, TIMES = T * SEGMENTS, UNITS = SEGMENTS * H;
  static constexpr int OUT = (A + 16) / 16 * 16, Y = OUT + 1;  // number of the decoder's outputs, padded; distance of their rows
  static constexpr int ACTS = HEADS > 0 ? HEADS : A, MEANS = HEADS > 0 ? 0 : A;  // actions and means per sample
  // PARTS threads divide the steps of a channel.
  static constexpr bool DIVIDED = UNITS < THREADS && THREADS % UNITS == 0 && STEPS % (THREADS / UNITS) == 0 && M * Y >= 2 * THREADS;
  static constexpr int PARTS = DIVIDED ? THREADS / UNITS : 1;
  // Offsets in the block's shared memory, in floats.
  static constexpr int AT_NOT_DONE = M * Y, AT_ACTIONS = AT_NOT_DONE + M, AT_TIMES = AT_ACTIONS + M * (ACTS + (LIVE ? 2 : 4));
  static constexpr int SIZE = AT_TIMES + (LIVE ? 6 * TIMES : 0);

  uint S, me;
  IN_SHARED float *y, *not_done, *actions, *old_logprobs, *old_values, *targets, *weights;  // one row per sample of a chunk
  IN_SHARED float *values, *advantages, *rewards, *terminals, *final_observations, *ratios;  // all steps, if LIVE
  int heads[HEADS + 1];
  float limit;            // bound of the means of actions
  float mean, deviation;  // mean and standard deviation of the minibatch's advantages
  float by_logstd[MEANS + 1];

  template <class Sizes>
  FUNCTION BlockRows(IN_SHARED float* pool, uint segments, uint me_, Sizes sizes, float limit_)
      : S(segments), me(me_), limit(limit_), mean(0.0f), deviation(1.0f) {
    y = pool, not_done = pool + AT_NOT_DONE, actions = pool + AT_ACTIONS, old_logprobs = actions + M * ACTS;
    old_values = old_logprobs + M, targets = old_values + M, weights = targets + M;
    values = pool + AT_TIMES, advantages = values + TIMES, rewards = advantages + TIMES;
    terminals = rewards + TIMES, final_observations = terminals + TIMES, ratios = final_observations + TIMES;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) heads[head] = sizes[head];
#pragma unroll
    for (int k = 0; k < MEANS; ++k) by_logstd[k] = 0.0f;
  }
  FUNCTION uint sample(int row, int chunk, uint segment) const { return sample_of<SEGMENTS, STEPS>(row, chunk, segment, S); }
};

// Load the actions, `not_done` and loss targets of a chunk (some steps of some segments) into shared memory. Unless LIVE,
// adv_or_rewards contains advantages and weight_or_terminals their weights.
template <class Block>
FUNCTION void load_rows(IN_THREAD const Block& rows, int chunk, uint segment, IN_DEVICE const float* actions,
                        IN_DEVICE const float* not_done, uint not_done_step, IN_DEVICE const float* old_logprob,
                        IN_DEVICE const float* old_value, IN_DEVICE const float* adv_or_rewards,
                        IN_DEVICE const float* weight_or_terminals) {
  for (int row = (int)rows.me; row < Block::M; row += Block::THREADS) {
    uint sample = rows.sample(row, chunk, segment);
    rows.not_done[row] = not_done[sample * not_done_step];
    rows.old_logprobs[row] = old_logprob[sample], rows.old_values[row] = old_value[sample];
    if (!Block::LIVE) rows.targets[row] = adv_or_rewards[sample], rows.weights[row] = weight_or_terminals[sample];
#pragma unroll
    for (int k = 0; k < Block::ACTS; ++k) rows.actions[row * Block::ACTS + k] = actions[sample * (uint)Block::ACTS + (uint)k];
  }
}

// Load the rewards, terminals and final observations of all steps into shared memory, to recompute advantages from new values.
// final_observations is read if has_final.
template <class Block, class FinalObservations>
FUNCTION void load_rewards(IN_THREAD const Block& rows, uint segment, IN_DEVICE const float* rewards,
                           IN_DEVICE const float* terminals, FinalObservations final_observations, bool has_final) {
  for (int k = (int)rows.me; Block::LIVE && k < Block::TIMES; k += Block::THREADS) {
    uint at = rows.sample(k, 0, segment);
    rows.rewards[k] = rewards[at], rows.terminals[k] = terminals[at];
    rows.final_observations[k] = has_final ? final_observations[at] : 0.0f;
    rows.ratios[k] = 1.0f;
  }
}

// Store the new values of a chunk's samples, and the ratios of new to old probabilities, in shared memory, to recompute advantages.
template <class Block, class Deviations>
FUNCTION void store_values(IN_THREAD const Block& rows, int chunk, uint segment, bool has_ratios, IN_DEVICE const uint8_t* masks,
                           Deviations logstd) {
  if ((int)rows.me >= Block::M) return;
  int row = (int)rows.me, at = chunk * Block::M + row;
  rows.values[at] = rows.y[row * Block::Y + Block::A];
  if (has_ratios) {
    uint sample = rows.sample(row, chunk, segment);
    float log_sums[Block::HEADS + 1], entropies[Block::HEADS + 1];
    IN_SHARED const float* logits = rows.y + row * Block::Y;
    IN_DEVICE const uint8_t* legal = masks + (Block::MASKED ? sample * (uint)Block::A : 0);
    float logprob = logprob_of<Block::MASKED, Block::HEADS>(logits, legal, rows.actions, rows.heads, logstd, rows.limit, 1, (uint)Block::A,
                                                            (uint)row, log_sums, entropies);
    rows.ratios[at] = exp(logprob - rows.old_logprobs[row]);
  }
}

// Recompute the advantages of a block's segments from new values and rewards in shared memory. All threads of the block must call
// this. It overwrites the ratios.
template <class Block>
FUNCTION void live_advantages(IN_THREAD const Block& rows, IN_THREAD const Discounts& by) {
  constexpr int TIMES = Block::TIMES, SEGMENTS = Block::SEGMENTS;
  BARRIER
  for (int k = (int)rows.me; k < TIMES - SEGMENTS; k += Block::THREADS) {
    int next = k + SEGMENTS;
    AdvantageStep step = advantage_step(by, rows.values[k], rows.values[next], rows.ratios[k], rows.rewards[next],
                                        rows.terminals[next], rows.final_observations[k], rows.final_observations[next]);
    rows.advantages[k] = step.delta, rows.ratios[k] = step.decay;
  }
  BARRIER
  if ((int)rows.me < SEGMENTS) {
    float a = 0.0f;
    rows.advantages[TIMES - SEGMENTS + (int)rows.me] = a;
#pragma unroll 4
    for (int k = TIMES - 2 * SEGMENTS + (int)rows.me; k >= 0; k -= SEGMENTS) {
      a = discounted(rows.advantages[k], rows.ratios[k], a);
      rows.advantages[k] = a;
    }
  }
  BARRIER
}

// Add the loss terms of a chunk's rows to `sums`. Write the loss's gradients with respect to the decoder's outputs to `dy`, and the
// samples' ratios, values and advantages to the outputs of these names.
template <class Block, class Deviations, class Gradients>
FUNCTION void score_rows(IN_THREAD Block& rows, int chunk, uint segment, IN_THREAD const PPOCoefficients& by,
                         IN_DEVICE const uint8_t* masks, Deviations logstd, Gradients dy, IN_DEVICE float* ratio, IN_DEVICE float* value,
                         IN_DEVICE float* adv, IN_THREAD SampleSums& sums) {
  constexpr int A = Block::A, HEADS = Block::HEADS;
  if ((int)rows.me >= Block::M) return;
  int row = (int)rows.me;
  uint sample = rows.sample(row, chunk, segment);
  IN_SHARED float* mine = rows.y + row * Block::Y;
  IN_SHARED const float* logits = mine;
  IN_DEVICE const uint8_t* legal = masks + (Block::MASKED ? sample * (uint)A : 0);
  float log_sums[HEADS + 1], entropies[HEADS + 1];
  float logprob = logprob_of<Block::MASKED, HEADS>(logits, legal, rows.actions, rows.heads, logstd, rows.limit, 1, (uint)A, (uint)row,
                                                   log_sums, entropies);
  float target = Block::LIVE ? rows.advantages[chunk * Block::M + row] : rows.targets[row], now = mine[A];
  float neg_advantage = Block::LIVE ? -target : -rows.weights[row] * ((target - rows.mean) / (rows.deviation + 1e-8f));
  Targets targets = {rows.old_logprobs[row], rows.old_values[row], neg_advantage, Block::LIVE ? now : rows.old_values[row], target};
  PPOTerms terms;
  float by_logprob = sample_gradients<float, Block::MASKED, HEADS>(
    logits, mine, legal, rows.actions, rows.heads, 1, (uint)A, (uint)row, logprob, log_sums, entropies, targets, by,
    1.0f / (float)((uint)Block::T * rows.S), terms, sums);
#pragma unroll
  for (int k = 0; k < Block::MEANS; ++k) {
    float s = logstd[k], distance = distance_of(rows.actions[row * A + k], mine[k], rows.limit, s);
    mine[k] = by_logprob * distance * exp(-s);
    rows.by_logstd[k] += by_logprob * normal_by_logstd(distance);
    sums.of[5] += normal_entropy(s);
  }
  for (uint k = 0; k <= (uint)A; ++k) dy.put((uint)row, k, mine[k]);
  ratio[sample] = terms.ratio;
  value[sample] = now;
  adv[sample] = target;
}

// Load a chunk's observations (M, D), zero-padded to (M, SEEN).
template <int SEGMENTS, int STEPS, int D, int SEEN, int THREADS, class Observed, class Seen>
FUNCTION void load_observations(IN_DEVICE const Observed* observations, Seen seen, int chunk, uint segment, uint S, uint me) {
  constexpr int ALL = SEGMENTS * STEPS * SEEN, AHEAD = 8;
  for (int k = (int)me; k < ALL; k += AHEAD * THREADS) {
    float numbers[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int at = k + v * THREADS, row = at / SEEN, d = at % SEEN;
      bool there = at < ALL && d < D;
      uint place = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S) * (uint)D + (uint)d;
      float x = (float)observations[there ? place : 0];
      numbers[v] = there ? x : 0.0f;
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int at = k + v * THREADS;
      if (at < ALL) seen.put((uint)(at / SEEN), (uint)(at % SEEN), numbers[v]);
    }
  }
}

// Add the contribution of M rows to a weight's gradient (ROWS, COLUMNS). Groups of 32 threads hold tiles (16 R, 8 C) of the gradient in
// registers. Groups beyond the last tile hold none.
template <int EXACT, int M, int ROWS, int COLUMNS, int R, int C, class Left, class Right>
FUNCTION void add_gradient(Left left, Right right, uint me, IN_THREAD float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32, row = item / ACROSS * 16 * R;
  if (item < ITEMS) add_product<EXACT, M, R, C, 8>(left, row, right, item % ACROSS * 8 * C, me, sums);
}

// Write the gradient of GATES stacked weights from registers to device memory, without padding, as (GATES, rows, columns).
template <int ROWS, int COLUMNS, int GATES, int R, int C>
FUNCTION void store_gradient(IN_DEVICE float* to, uint rows, uint columns, uint me, IN_THREAD const float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32;
  if (item >= ITEMS) return;
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint row = (item / ACROSS * R + (uint)i) * 16 + row_of(v, me), column = (item % ACROSS * C + (uint)j) * 8 + column_of(v, me);
        uint gate = row / (uint)(ROWS / GATES), unit = row % (uint)(ROWS / GATES);
        if (unit < rows && column < columns) to[(gate * rows + unit) * columns + column] = sums[i][j][v];
      }
}
