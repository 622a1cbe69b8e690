// Functions that load, step and store an environment in one thread. Included after the environment's header.
//
// In complete rollouts, `at` is the environment's index in the block and `world` its index among all environments; it has EACH agents.
// The agents' rows are in shared memory: observations in `rows`, actions in `acted`, rewards in `rewarded`, terminals in `ended`, masks
// in `allowed`.

template <int WORDS>
union EnvStorage {
  int words[WORDS];
  Game env;
};

// Declare a thread's environment `storage`, whose device memory is `kept`. A LARGE environment doesn't fit in registers. In a thread's
// private memory each word would take a cache line, because that memory is interleaved with other threads'. So on CUDA, where pointers
// have no address space, a LARGE environment is stepped in `kept` directly.
#ifdef __METAL_VERSION__
#define DECLARE_ENV(storage, WORDS, LARGE, kept) EnvStorage<WORDS> storage;
#else
#define DECLARE_ENV(storage, WORDS, LARGE, kept) \
  EnvStorage<WORDS> in_thread;                   \
  EnvStorage<WORDS>& storage = LARGE ? *(EnvStorage<WORDS>*)(void*)(kept) : in_thread;
#endif

template <class Env>
CALLED void step_out_of_line(IN_THREAD Env* env) { game::c_step(env); }

#if defined(BEGINS_LATER) && defined(BEGIN_STAGES)
CALLED void begin_env(Game* env, int stage, int part, int parts) { game::c_begin(env, stage, part, parts); }
#endif

// Step an environment. The step of a LARGE one isn't inlined, because compilation would take twenty times as long.
template <int LARGE, int WORDS>
FUNCTION void step_game(IN_THREAD EnvStorage<WORDS>& storage) {
  if (LARGE) {
    step_out_of_line(&storage.env);
  } else {
    game::c_step(&storage.env);
  }
}

// Set an environment's pointers to the rows of its agents.
template <int WORDS, class Number>
FUNCTION void take_rows(IN_THREAD EnvStorage<WORDS>& storage, IN_ROWS Number* rows, IN_ROWS float* acted, IN_ROWS float* rewarded,
                        IN_ROWS float* ended, IN_ROWS uint8_t* allowed) {
  storage.env.observations.at = rows;
  storage.env.actions.at = acted;
  storage.env.rewards.at = rewarded;
  storage.env.terminals.at = ended;
#ifdef MASKED
  storage.env.action_mask.at = allowed;
#endif
}

// Clear an environment's pointers to rows, as the host's structs have none between steps.
template <int WORDS>
FUNCTION void leave_rows(IN_THREAD EnvStorage<WORDS>& storage) {
  storage.env.observations.at = 0;
  storage.env.actions.at = 0;
  storage.env.rewards.at = 0;
  storage.env.terminals.at = 0;
#ifdef MASKED
  storage.env.action_mask.at = 0;
#endif
}

// Load an environment and clear its log. The outputs of its previous step become row 0 of the rollout.
template <int WORDS, int EACH, int SEEN, int HEADS, int LEGAL, int LOG, int LOGS, class Number>
FUNCTION void load_env(IN_THREAD EnvStorage<WORDS>& storage, IN_DEVICE const int* games, uint at, uint world, IN_SHARED Number* rows,
                       IN_SHARED float* acted, IN_SHARED float* rewarded, IN_SHARED float* ended, IN_SHARED uint8_t* allowed,
                       IN_DEVICE const float* first_rewards, IN_DEVICE const float* first_terminals,
                       IN_DEVICE const uint8_t* first_masks, IN_DEVICE float* all_rewards, IN_DEVICE float* all_terminals,
                       IN_DEVICE uint8_t* all_masks) {
  uint row = at * EACH, player = world * EACH;
  for (uint word = 0; word < WORDS; ++word) storage.words[word] = games[world * WORDS + word];
  for (uint word = LOG; word < LOG + LOGS; ++word) storage.words[word] = 0;
  take_rows(storage, rows + row * SEEN, acted + row * HEADS, rewarded + row, ended + row, allowed + row * LEGAL);
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

// Step an environment with `actions`, and write its outputs to the rollout's rows from `next` on.
template <int WORDS, int LARGE, int EACH, int HEADS, int LEGAL>
FUNCTION void step_env(IN_THREAD EnvStorage<WORDS>& storage, uint at, uint next, IN_DEVICE const float* actions, IN_SHARED float* acted,
                   IN_SHARED float* rewarded, IN_SHARED float* ended, IN_SHARED uint8_t* allowed, IN_DEVICE float* all_rewards,
                   IN_DEVICE float* all_terminals, IN_DEVICE uint8_t* all_masks) {
  uint row = at * EACH;
  for (uint k = 0; k < EACH * HEADS; ++k) acted[row * HEADS + k] = actions[k];
  for (uint k = 0; k < EACH; ++k) rewarded[row + k] = ended[row + k] = 0.0f;
  step_game<LARGE>(storage);
  for (uint k = 0; k < EACH; ++k) {
    all_rewards[next + k] = rewarded[row + k];
    all_terminals[next + k] = ended[row + k];
  }
#ifdef MASKED
  for (uint k = 0; k < EACH * LEGAL; ++k) all_masks[next * LEGAL + k] = allowed[row * LEGAL + k];
#endif
}

// Store an environment in device memory, without its pointers to rows.
template <int LARGE, int WORDS>
FUNCTION void store_env(IN_THREAD EnvStorage<WORDS>& storage, IN_DEVICE int* kept) {
  leave_rows(storage);
#ifndef __METAL_VERSION__
  if (LARGE) return;  // it was stepped in place
#endif
  for (uint word = 0; word < WORDS; ++word) kept[word] = storage.words[word];
}
