// How a kernel of a minibatch's gradients begins: what a block's rows are, and where their numbers of float32 lie in its memory.
  constexpr int M = SEGMENTS * STEPS, CHUNKS = T / STEPS, TIMES = T * SEGMENTS, UNITS = SEGMENTS * H;
  constexpr int LOW = sizeof(Low) == 2 ? 1 : 0, SEEN = LOW ? (D + 15) / 16 * 16 : (D + 7) / 8 * 8, W = (SEEN + 31) / 32 * 32;
  constexpr int OUT = (A + 16) / 16 * 16, DY = OUT > 32 ? 64 : 32, Y = OUT + 1;
  constexpr int ACTS = HEADS > 0 ? HEADS : A, NUMBERS = HEADS > 0 ? 0 : A;  // of a sample
  constexpr int AT_KEEP = M * Y, AT_ROWS = AT_KEEP + M, AT_TIMES = AT_ROWS + M * (ACTS + (LIVE ? 2 : 4));
  constexpr int AT_CARRY = AT_TIMES + (LIVE ? 6 * TIMES : 0), FLOATS = (AT_CARRY + CARRIED + 31) / 32 * 32;
  // Of a channel's steps so many threads have a part each.
  constexpr bool DIVIDED = UNITS < THREADS && THREADS % UNITS == 0 && STEPS % (THREADS / UNITS) == 0 && M * Y >= 2 * THREADS;
  constexpr int PARTS = DIVIDED ? THREADS / UNITS : 1;
  SHARED_POOL(pool, POOL)
  IN_SHARED float *y = pool, *kept = pool + AT_KEEP, *acted = pool + AT_ROWS, *old_logprobs = acted + M * ACTS;
  IN_SHARED float *old_values = old_logprobs + M, *targets = old_values + M, *shares = targets + M;
  IN_SHARED float *values = pool + AT_TIMES, *advantages = values + TIMES, *rewards = advantages + TIMES;
  IN_SHARED float *terminals = rewards + TIMES, *finals = terminals + TIMES, *ratios = finals + TIMES, *carries = pool + AT_CARRY;
  IN_SHARED Low* low = (IN_SHARED Low*)(IN_SHARED void*)(pool + FLOATS);
  Apart<Y> of_y = {y};
  const uint S = (uint)shape[0], keep_step = (uint)shape[1], first_step = (uint)shape[2], n = (uint)T * S;
  const uint N = (uint)shape[9], first_agent = (uint)strip[0];
  const bool has_ratios = shape[7] != 0;
  float mean = 0.0f, deviation = 1.0f, entropy_weight = ent_coef[0], vf_coef = settings[3], limit = settings[5];
  int heads[HEADS + 1];
#pragma unroll
  for (int head = 0; head < HEADS; ++head) heads[head] = sizes[head];
  float of_logstd[NUMBERS + 1];
#pragma unroll
  for (int k = 0; k < NUMBERS; ++k) of_logstd[k] = 0.0f;
  SampleSums sums;
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] = 0.0f;
  PPONumbers numbers = {settings[0], settings[1], settings[2], settings[4]};
