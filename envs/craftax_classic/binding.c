// Connects craftax_classic.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "craftax_classic.h"

#define OBS_SIZE 1345
#define NUM_ATNS 1
#define ACT_SIZES {17}
#define OBS_TENSOR_T FloatTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN
#define MY_GPU "craftax_classic.h"  // GPUs can run these rules
#define Env CraftaxClassic
#include "vecenv.h"

_Static_assert(OBS_SIZE == NUMBERS, "OBS_SIZE must be what write_observations writes");
_Static_assert(2 * ANGLES <= NUMBERS, "a new world's directions must fit into an observation");

// Initialise an environment of Craftax. It reads no keys of the configuration's [env] section,
// because the rules are fixed.
void my_init(Env* env, Dict* kwargs) {
    (void)kwargs;
    env->num_agents = 1;
}

void my_log(Log* log, Dict* out) {
    static const char* const NAMES[ACHIEVEMENTS] = {
        "collect_wood",      "place_table",       "eat_cow",         "collect_sapling",
        "collect_drink",     "make_wood_pickaxe", "make_wood_sword", "place_plant",
        "defeat_zombie",     "collect_stone",     "place_stone",     "eat_plant",
        "defeat_skeleton",   "make_stone_pickaxe", "make_stone_sword", "wake_up",
        "place_furnace",     "collect_coal",      "collect_iron",    "collect_diamond",
        "make_iron_pickaxe", "make_iron_sword",
    };
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "achievements", log->achievements);
    for (int i = 0; i < ACHIEVEMENTS; i++) {
        dict_set(out, NAMES[i], log->unlocked[i]);
    }
}
