// An environment in the thread that steps it: behind its rules, in a kernel of whole rollouts or of a step.
//
// In whole rollouts `at` is its place in the block, `world` that among all environments; it has EACH agents. The rows of the
// block's agents are in its shared memory: observations `rows`, then `acted`, `rewarded`, `ended` and masks `allowed`.

template <int WORDS>
union Held {
  int words[WORDS];
  Game env;
};

// Where a thread has its environment: `held`, in its own memory, and in `kept` in the end. LARGE: registers can't hold it. A
// thread's own memory lies word by word beside its neighbours', so that a large struct in it takes a line of the caches for
// every word: on CUDA, whose pointers say nothing of memories, such a one is played in `kept`, in one piece.
#ifdef __METAL_VERSION__
#define HOLD(held, WORDS, LARGE, kept) Held<WORDS> held;
#else
#define HOLD(held, WORDS, LARGE, kept) \
  Held<WORDS> own;                     \
  Held<WORDS>& held = LARGE ? *(Held<WORDS>*)(void*)(kept) : own;
#endif

template <class Env>
CALLED void step_apart(IN_THREAD Env* env) { game::c_step(env); }

#if defined(BEGINS_LATER) && defined(BEGIN_STAGES)
CALLED void begin_apart(Game* env, int stage, int part, int parts) { game::c_begin(env, stage, part, parts); }
#endif

// A step. A world's that is large is a function of its own: inlined into a loop, compilers take twenty times as long for it.
template <int LARGE, int WORDS>
FUNCTION void step_game(IN_THREAD Held<WORDS>& held) {
  if (LARGE) {
    step_apart(&held.env);
  } else {
    game::c_step(&held.env);
  }
}

// From now on the rows of the environment's agents are there.
template <int WORDS, class Number>
FUNCTION void take_rows(IN_THREAD Held<WORDS>& held, IN_ROWS Number* rows, IN_ROWS float* acted, IN_ROWS float* rewarded,
                        IN_ROWS float* ended, IN_ROWS uint8_t* allowed) {
  held.env.observations.at = rows;
  held.env.actions.at = acted;
  held.env.rewards.at = rewarded;
  held.env.terminals.at = ended;
#ifdef MASKED
  held.env.action_mask.at = allowed;
#endif
}

// The struct's bytes without where rows are, as the host has them between two steps.
template <int WORDS>
FUNCTION void leave_rows(IN_THREAD Held<WORDS>& held) {
  held.env.observations.at = 0;
  held.env.actions.at = 0;
  held.env.rewards.at = 0;
  held.env.terminals.at = 0;
#ifdef MASKED
  held.env.action_mask.at = 0;
#endif
}

// The environment, its log emptied, from memory; what arrived before its first step is the rollout's first row.
template <int WORDS, int EACH, int SEEN, int HEADS, int LEGAL, int LOG, int LOGS, class Number>
FUNCTION void sit_down(IN_THREAD Held<WORDS>& held, IN_DEVICE const int* games, uint at, uint world, IN_SHARED Number* rows,
                       IN_SHARED float* acted, IN_SHARED float* rewarded, IN_SHARED float* ended, IN_SHARED uint8_t* allowed,
                       IN_DEVICE const float* first_rewards, IN_DEVICE const float* first_terminals,
                       IN_DEVICE const uint8_t* first_masks, IN_DEVICE float* all_rewards, IN_DEVICE float* all_terminals,
                       IN_DEVICE uint8_t* all_masks) {
  uint row = at * EACH, player = world * EACH;
  for (uint word = 0; word < WORDS; ++word) held.words[word] = games[world * WORDS + word];
  for (uint word = LOG; word < LOG + LOGS; ++word) held.words[word] = 0;
  take_rows(held, rows + row * SEEN, acted + row * HEADS, rewarded + row, ended + row, allowed + row * LEGAL);
  for (uint k = 0; k < EACH; ++k) {
    all_rewards[player + k] = first_rewards[player + k];
    all_terminals[player + k] = first_terminals[player + k];
  }
#ifdef MASKED
  for (uint k = 0; k < EACH * LEGAL; ++k) {
    uint8_t before = first_masks[player * LEGAL + k];
    allowed[row * LEGAL + k] = before;
    all_masks[player * LEGAL + k] = before;
  }
#endif
}

// A step by `actions`; what arrives is the rollout's row `next` and those behind it.
template <int WORDS, int LARGE, int EACH, int HEADS, int LEGAL>
FUNCTION void play(IN_THREAD Held<WORDS>& held, uint at, uint next, IN_DEVICE const float* actions, IN_SHARED float* acted,
                   IN_SHARED float* rewarded, IN_SHARED float* ended, IN_SHARED uint8_t* allowed, IN_DEVICE float* all_rewards,
                   IN_DEVICE float* all_terminals, IN_DEVICE uint8_t* all_masks) {
  uint row = at * EACH;
  for (uint k = 0; k < EACH * HEADS; ++k) acted[row * HEADS + k] = actions[k];
  for (uint k = 0; k < EACH; ++k) rewarded[row + k] = ended[row + k] = 0.0f;
  step_game<LARGE>(held);
  for (uint k = 0; k < EACH; ++k) {
    all_rewards[next + k] = rewarded[row + k];
    all_terminals[next + k] = ended[row + k];
  }
#ifdef MASKED
  for (uint k = 0; k < EACH * LEGAL; ++k) all_masks[next * LEGAL + k] = allowed[row * LEGAL + k];
#endif
}

// The environment to where it is kept, without where its rows were.
template <int LARGE, int WORDS>
FUNCTION void stand_up(IN_THREAD Held<WORDS>& held, IN_DEVICE int* kept) {
  leave_rows(held);
#ifndef __METAL_VERSION__
  if (LARGE) return;  // it is there
#endif
  for (uint word = 0; word < WORDS; ++word) kept[word] = held.words[word];
}
