// Kernel that computes a complete rollout. Unlike rollout.kernel.h it multiplies with the GPU's matrix units. A block has M agents.
//
// Results are rounded as in a minibatch's forward pass (ppo/minibatch). Weights are stored as in a checkpoint. KEPT selects the weights
// that stay in shared memory during the rollout:
//
//   2  all
//   1  the layers' and the decoder's
//   0  the decoder's. The encoder's weight is loaded in each step; the layers' are streamed from `layers` (L, 3H, H), 16-bit numbers
//
// States (L, n, H) are float, observations float or bytes. sizes: see functions.metal.h; logstd (1, A) is for continuous actions.
//
// Layout of the pool: FLOATS floats (observations, decoder's outputs, states, factors, actions and rewards), then LOWS numbers of type
// Low (gates, features x and out, observations, weights). AT_NAME is an offset. Rows are padded: DEEP and W are padded observation sizes,
// OUT and Y padded sizes of the decoder's output. One of APART threads steps an environment.

#include "rows"
#include "gpu/acting/choose.metal.h"
#include "gpu/acting/rules.kernel.h"
#include "rules"
#include "gpu/acting/stepping.kernel.h"

KERNEL rollout<Low, Observed, M, THREADS, KEPT, EXACT, POOL, HIDDEN_C, SEEN, H, L, A, HEADS, LEGAL, WORDS, LARGE, LOG,
  LOGS>:
  Observed first_observations, float first_rewards first_terminals, uint8_t first_masks, int games, float states_before all_noise
  encoder decoder logstd layer0 layer1 layer2 layer3, Low layers, int sizes horizon
  -> Observed all_observations last_observations, float all_rewards all_terminals, uint8_t all_masks, float all_actions all_logprobs
  all_values, int games_after, float after {
  constexpr int LOW = sizeof(Low) == 2 ? 1 : 0, DEEP = LOW ? (SEEN + 15) / 16 * 16 : (SEEN + 7) / 8 * 8;
  constexpr int W = (DEEP + 31) / 32 * 32, OUT = (A + 16) / 16 * 16, Y = OUT + 1, APART = THREADS / M, U = 3 * H;
  constexpr int AT_Y = (M * SEEN * sizeof(Observed) + 3) / 4, AT_STATES = AT_Y + M * Y, AT_KEEP = AT_STATES + L * M * H, AT_ACTED = AT_KEEP + M;
  constexpr int FLOATS = (AT_ACTED + M * (HEADS + 2) + 31) / 32 * 32;
  constexpr int STREAMED = KEPT == 0, AT_X = U * M, AT_SEEN = STREAMED ? 0 : AT_X + 2 * M * H;
  constexpr int AT_DECODER = AT_X + 2 * M * H + (STREAMED ? 0 : M * W), AT_LAYERS = AT_DECODER + OUT * H;
  constexpr int AT_ENCODER = AT_LAYERS + (STREAMED ? 0 : L * 3 * H * H);
  constexpr int LOWS = AT_ENCODER + (STREAMED ? 2 * H * 64 : KEPT > 1 ? H * W : 0);
  static_assert(!STREAMED || (LOW && W <= 128 && W <= U), "a block has no room for the encoder's weight");
  static_assert(sizeof(Game) == 4 * WORDS, "a GPU lays the environment's struct out in another way");
  static_assert(4 * FLOATS + (LOW ? 2 : 4) * LOWS <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  SHARED uint8_t allowed[M * LEGAL];
  IN_SHARED Observed* rows = (IN_SHARED Observed*)pool;
  IN_SHARED float *y = pool + AT_Y, *held_states = pool + AT_STATES, *kept = pool + AT_KEEP;
  IN_SHARED float *acted = pool + AT_ACTED, *rewarded = acted + M * HEADS, *ended = rewarded + M;
  IN_SHARED Low* low = (IN_SHARED Low*)(pool + FLOATS);
  Swizzled<Low, U> u = {low};
  Swizzled<Low, W> seen = {low + AT_SEEN}, encodes = {low + AT_ENCODER};
  Swizzled<Low, H> decodes = {low + AT_DECODER};
  uint n = (uint)sizes[ActingSizes::AGENTS], first = block * M, T = (uint)horizon[0];
  uint slot = me / APART, player = first + slot;  // the agent whose environment this thread steps
  bool plays = me % APART == 0 && player < n, resets = sizes[ActingSizes::RESETS] > 0;
  DECLARE_ENV(storage, WORDS, LARGE, games_after + player * WORDS)

  auto encoding = Either<(KEPT != 1)>::of(encodes, Padded<SEEN>{encoder, H, SEEN});
  keep_weight<OUT, H, THREADS>(decoder, A + 1, H, decodes, me);
#pragma unroll
  for (int l = 0; l < L && KEPT > 0; ++l)
    keep_weight<3 * H, H, THREADS>(OF_LAYER(layer, l), 3 * H, H, Swizzled<Low, H>{low + AT_LAYERS + 3 * l * H * H}, me);
  if (KEPT > 1) keep_weight<H, W, THREADS>(encoder, H, SEEN, encodes, me);
  for (uint k = me; k < M * SEEN; k += THREADS) rows[k] = first + k / SEEN < n ? first_observations[first * SEEN + k] : (Observed)0;
  for (uint k = me; k < M * W; k += THREADS) seen.put(k / W, k % W, 0.0f);
  for (uint k = me; k < L * M * H; k += THREADS) {
    uint agent = first + k / H % M;
    held_states[k] = agent < n ? states_before[(k / (M * H) * n + agent) * H + k % H] : 0.0f;
  }
  for (uint row = me; row < M; row += THREADS) kept[row] = resets && first + row < n ? 1.0f - first_terminals[first + row] : 1.0f;
  if (plays) {
    load_env<WORDS, 1, SEEN, HEADS, LEGAL, LOG, LOGS>(storage, games, slot, player, rows, acted, rewarded, ended, allowed,
                                                      first_rewards, first_terminals, first_masks, all_rewards, all_terminals,
                                                      all_masks);
  }
  DEVICE_BARRIER

  for (uint t = 0; t < T; ++t) {
    for (uint k = me; k < M * SEEN; k += THREADS) {
      Observed x = rows[k];
      if (first + k / SEEN < n) all_observations[(t * n + first) * SEEN + k] = x;
      seen.put(k / SEEN, k % SEEN, (float)x);
    }
    if (STREAMED) {  // `seen` and `encodes` use the memory of the previous step's gates and tiles
      constexpr uint PADDING = W > SEEN ? W - SEEN : 1;
      for (uint k = me; W > SEEN && k < M * PADDING; k += THREADS) seen.put(k / PADDING, SEEN + k % PADDING, 0.0f);
      keep_weight<H, W, THREADS>(encoder, H, SEEN, encodes, me);
    }
    BARRIER
    Swizzled<Low, H> x = {low + AT_X}, out = {low + AT_X + M * H};
    multiply_rows<EXACT, DEEP, M, H, HIDDEN_C, THREADS>(seen, transposed(encoding), x, false, me);
    BARRIER
#pragma unroll
    for (int l = 0; l < L; ++l) {
      Swizzled<Low, H> near = {low + AT_LAYERS + (STREAMED ? 0 : 3 * l * H * H)};  // the weight; if STREAMED, a buffer for its tiles
      GatesOf<STREAMED>::template rows<EXACT, H, M, THREADS>(x, transposed(near), layers + l * (3 * H * H), near.numbers, u, me);
      step_rows<H, M, THREADS>(x, out, u, held_states + l * M * H, kept, me);
      Swizzled<Low, H> other = x;
      x = out;
      out = other;
      BARRIER
    }
    multiply_rows<EXACT, H, M, OUT, 1, THREADS>(x, transposed(decodes), Apart<Y>{y}, false, me);
    BARRIER
    if (plays) {
      uint now = t * n + player, next = now + n;
      IN_SHARED Rows<1>* decoded = (IN_SHARED Rows<1>*)(y + slot * Y);
      IN_DEVICE float* actions = all_actions + now * HEADS;
      IN_DEVICE const uint8_t* legal = all_masks + now * LEGAL;
      all_logprobs[now] = draw_actions<1>(sizes, HEADS, decoded, 0, all_noise + now * HEADS, logstd, legal, actions);
      all_values[now] = y[slot * Y + A];
      step_env<WORDS, LARGE, 1, HEADS, LEGAL>(storage, slot, next, actions, acted, rewarded, ended, allowed, all_rewards, all_terminals,
                                          all_masks);
      if (resets) kept[slot] = 1.0f - ended[slot];
    }
    BARRIER
  }

  for (uint k = me; k < M * SEEN; k += THREADS)
    if (first + k / SEEN < n) last_observations[first * SEEN + k] = rows[k];
  for (uint k = me; k < L * M * H; k += THREADS) {
    uint agent = first + k / H % M;
    if (agent < n) after[(k / (M * H) * n + agent) * H + k % H] = held_states[k];
  }
  if (plays) store_env<LARGE>(storage, games_after + player * WORDS);
}
