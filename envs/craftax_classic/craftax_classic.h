// craftax_classic: survive in a world of 64 x 64 cells: mine, craft, eat, drink, sleep and fight.
//
// The rules are those of Craftax-Classic (Matthews et al. 2024), which reimplements Crafter (Hafner
// 2021), as the package `craftax` 1.6 plays them: the same state, action and random choices give the
// same next state, reward and observation. This includes apparent oversights, marked "as the
// original". benchmarks/craftax_original.py compares the two.
//
// Each of 22 achievements gives 1 the first time in an episode; each point of health gives 0.1, or
// costs it. An episode ends with death, in lava, or after 10,000 steps. A day has 300 steps.
//
// A dead mob stays in its slot and continues to walk, invisibly; DO revives one that has health left,
// as in the original. An arrow that hit something also continues to fly, invisibly.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#define TABLE static const
#endif

#ifndef DRAW  // 31 random bits; the comparison with the original defines it differently
#define DRAW(env, choice) rand_r(&(env)->rng)
#endif

enum {
    INVALID, OUT_OF_BOUNDS, GRASS, WATER, STONE, TREE, WOOD, PATH, COAL, IRON, DIAMOND,
    CRAFTING_TABLE, FURNACE, SAND, LAVA, PLANT, RIPE_PLANT, BLOCKS
};

enum {
    ACT_NOOP, ACT_LEFT, ACT_RIGHT, ACT_UP, ACT_DOWN, ACT_DO, ACT_SLEEP, ACT_PLACE_STONE,
    ACT_PLACE_TABLE, ACT_PLACE_FURNACE, ACT_PLACE_PLANT, ACT_MAKE_WOOD_PICKAXE,
    ACT_MAKE_STONE_PICKAXE, ACT_MAKE_IRON_PICKAXE, ACT_MAKE_WOOD_SWORD, ACT_MAKE_STONE_SWORD,
    ACT_MAKE_IRON_SWORD, ACTIONS
};

enum {
    ITEM_WOOD, ITEM_STONE, ITEM_COAL, ITEM_IRON, ITEM_DIAMOND, ITEM_SAPLING, ITEM_WOOD_PICKAXE,
    ITEM_STONE_PICKAXE, ITEM_IRON_PICKAXE, ITEM_WOOD_SWORD, ITEM_STONE_SWORD, ITEM_IRON_SWORD, ITEMS
};

enum {
    COLLECT_WOOD, PLACE_TABLE, EAT_COW, COLLECT_SAPLING, COLLECT_DRINK, MAKE_WOOD_PICKAXE,
    MAKE_WOOD_SWORD, PLACE_PLANT, DEFEAT_ZOMBIE, COLLECT_STONE, PLACE_STONE, EAT_PLANT,
    DEFEAT_SKELETON, MAKE_STONE_PICKAXE, MAKE_STONE_SWORD, WAKE_UP, PLACE_FURNACE, COLLECT_COAL,
    COLLECT_IRON, COLLECT_DIAMOND, MAKE_IRON_PICKAXE, MAKE_IRON_SWORD, ACHIEVEMENTS
};

#define SIDE 64  // cells per side of the world
#define VIEW_ROWS 7
#define VIEW_COLUMNS 9
#define MOB_KINDS 4
#define CELL_NUMBERS (BLOCKS + MOB_KINDS)
#define NUMBERS (VIEW_ROWS * VIEW_COLUMNS * CELL_NUMBERS + ITEMS + 4 + 4 + 2)
#define FULL 9  // maximum of an item, health, food, drink and energy
#define ZOMBIES 3
#define COWS 3
#define SKELETONS 2
#define ARROWS 3
#define PLANTS 10
#define LONGEST 10000  // steps per episode
#define DAYS (1.0f / 300.0f)  // days per step; the original also multiplies
#define RIPE_AGE 600   // steps
#define ZOMBIE_HEALTH 5
#define COW_HEALTH 3
#define SKELETON_HEALTH 3
#define OUT_OF_SIGHT 14  // steps from the player, where mobs vanish

// Indices of DRAW: the random choices of a step, then those of a new world.
enum {
    SAPLING_CHANCE,
    ZOMBIE_WAY,
    ZOMBIE_AXIS = ZOMBIE_WAY + ZOMBIES,
    ZOMBIE_CHASES = ZOMBIE_AXIS + ZOMBIES,
    COW_WAY = ZOMBIE_CHASES + ZOMBIES,
    SKELETON_WAY = COW_WAY + COWS,
    SKELETON_AXIS = SKELETON_WAY + SKELETONS,
    SKELETON_AIMS = SKELETON_AXIS + SKELETONS,
    COW_CHANCE = SKELETON_AIMS + SKELETONS,
    COW_CELL,
    ZOMBIE_CHANCE,
    ZOMBIE_CELL,
    SKELETON_CHANCE,
    SKELETON_CELL,
    STEP_CHOICES
};

#define NODES(down, across) (((down) + 1) * ((across) + 1))
enum {
    WATER_ANGLES,
    MOUNTAIN_ANGLES = WATER_ANGLES + NODES(4, 4),
    PATH_ANGLES = MOUNTAIN_ANGLES + NODES(4, 4),
    TREE_ANGLES = PATH_ANGLES + NODES(8, 32),
    ANGLES = TREE_ANGLES + NODES(16, 16),
    COAL_CHANCE = ANGLES,
    IRON_CHANCE = COAL_CHANCE + SIDE * SIDE,
    DIAMOND_CHANCE = IRON_CHANCE + SIDE * SIDE,
    TREE_CHANCE = DIAMOND_CHANCE + SIDE * SIDE,
    DIAMOND_CELL = TREE_CHANCE + SIDE * SIDE,
    WORLD_CHOICES
};

enum { WATERS, MOUNTAINS, PATHS, TREES, NOISES };
#define MAKERS 128  // largest number of threads that make a world; each has a row of `extremes`

#define BIT(n) (1u << (n))
#define SOLID                                                                               \
    (BIT(WATER) | BIT(STONE) | BIT(TREE) | BIT(COAL) | BIT(IRON) | BIT(DIAMOND) |           \
     BIT(CRAFTING_TABLE) | BIT(FURNACE) | BIT(PLANT) | BIT(RIPE_PLANT))
#define MOB_HERE 0x80  // flag of a cell with a mob
#define BLOCK 0x1F     // bits of a cell's block

// Steps of the movement actions: none, left, right, up, down.
TABLE int STEP_DOWN[5] = {0, 0, 0, -1, 1};
TABLE int STEP_RIGHT[5] = {0, -1, 1, 0, 0};

// 0.0 to 0.9 as in the original's observations: a tenth in 16 bits, times 0 to 9.
TABLE float TENTHS[FULL + 1] = {
    0.0f, 0.0999755859375f, 0.199951171875f, 0.2998046875f, 0.39990234375f,
    0.5f, 0.599609375f,     0.69970703125f,  0.7998046875f, 0.89990234375f,
};

// For ACT_MAKE_WOOD_PICKAXE and the actions after it: the achievement, and how many of wood, stone,
// coal, iron one tool costs.
TABLE int MAKES[6] = {
    MAKE_WOOD_PICKAXE, MAKE_STONE_PICKAXE, MAKE_IRON_PICKAXE,
    MAKE_WOOD_SWORD,   MAKE_STONE_SWORD,   MAKE_IRON_SWORD,
};
TABLE int MATERIALS[6] = {1, 2, 4, 1, 2, 4};

typedef struct {
    float perf;                      // episode_return / 22
    float score;                     // episode_return
    float episode_return;            // sum of rewards
    float episode_length;            // steps
    float achievements;              // number of unlocked achievements
    float unlocked[ACHIEVEMENTS];    // 1 for each that was unlocked
    float n;
} Log;

typedef struct {
    int row;
    int column;
    int health;
    int cooldown;  // steps until it may attack again; 0 or less: now
    int alive;
} Mob;

typedef struct {
    int row;
    int column;
    int down;  // rows per step
    int right;
    int alive;
} Arrow;

typedef struct {
    int row;
    int column;
    int age;  // steps
    int grows;
} Plant;

typedef struct {
    Log log;
    ENV_ROWS(float) observations;  // (1345,): write_observations
    ENV_ROWS(float) actions;       // (1,)
    ENV_ROWS(float) rewards;       // (1,)
    ENV_ROWS(float) terminals;     // (1,)
    int num_agents;
    unsigned int rng;

    int tick;
    float light;  // 0 to 1
    float episode_return;
    unsigned int unlocked;  // a bit for each achievement

    int row;
    int column;
    int facing;  // ACT_LEFT to ACT_DOWN
    int health;
    int food;
    int drink;
    int energy;
    int sleeping;
    float recovery;  // counts up to a point of health; the next three down to a point of theirs
    float hunger;
    float thirst;
    float fatigue;
    int inventory[ITEMS];

    Mob zombies[ZOMBIES];
    Mob cows[COWS];
    Mob skeletons[SKELETONS];
    Arrow arrows[ARROWS];
    Plant plants[PLANTS];
    union {
        uint8_t cells[SIDE * SIDE];  // row by row: a block and the flag MOB_HERE
        float extremes[MAKERS][2 * NOISES];  // used while a world is made, before its cells
    };
} CraftaxClassic;

// ---- Random choices, arithmetic, cells ----------------------------------------------------------

#define LIKELY(draw, share) ((float)(draw) < (share) * 2147483648.0f)  // of a draw of 31 bits

ENV_FN int least(int a, int b) {
    return a < b ? a : b;
}

ENV_FN int most(int a, int b) {
    return a > b ? a : b;
}

ENV_FN int size_of(int a) {
    return a < 0 ? -a : a;
}

ENV_FN int sign_of(int a) {
    return a > 0 ? 1 : a < 0 ? -1 : 0;
}

ENV_FN bool inside(int row, int column) {
    return row >= 0 && row < SIDE && column >= 0 && column < SIDE;
}

// Map a row or column index outside the world to the one that the original game reads: negative
// ones count from the other end, and too large ones become the last.
ENV_FN int reads(int index) {
    const int at = index < 0 ? index + SIDE : index;
    return at < 0 ? 0 : least(at, SIDE - 1);
}

ENV_FN int cell_at(const CraftaxClassic ENV_PTR* env, int row, int column) {
    return env->cells[reads(row) * SIDE + reads(column)];
}

ENV_FN void put(CraftaxClassic ENV_PTR* env, int row, int column, int block) {
    uint8_t ENV_PTR* cell = &env->cells[row * SIDE + column];
    *cell = (uint8_t)((*cell & MOB_HERE) | block);
}

ENV_FN bool any_of(unsigned int blocks, int cell) {
    return (blocks >> (cell & BLOCK) & 1u) != 0;
}

ENV_FN bool has_player(const CraftaxClassic ENV_PTR* env, int row, int column) {
    return row == env->row && column == env->column;
}

// Return true if a cell is free, so that a mob or the player may enter it.
ENV_FN bool is_free(const CraftaxClassic ENV_PTR* env, int row, int column) {
    if (!inside(row, column) || has_player(env, row, column)) {
        return false;
    }
    const int cell = env->cells[row * SIDE + column];
    return (cell & MOB_HERE) == 0 && !any_of(SOLID | BIT(LAVA), cell);
}

ENV_FN int steps_to_player(const CraftaxClassic ENV_PTR* env, int row, int column) {
    return size_of(env->row - row) + size_of(env->column - column);
}

ENV_FN void unlock(CraftaxClassic ENV_PTR* env, int achievement) {
    env->unlocked |= BIT(achievement);
}

ENV_FN int count_bits(unsigned int bits) {
    int count = 0;
    for (; bits != 0; bits &= bits - 1) {
        count += 1;
    }
    return count;
}

// ---- Actions of the player ----------------------------------------------------------------------

ENV_FN bool is_near(const CraftaxClassic ENV_PTR* env, int block) {
    for (int row = env->row - 1; row <= env->row + 1; row++) {
        for (int column = env->column - 1; column <= env->column + 1; column++) {
            if (inside(row, column) && !has_player(env, row, column) &&
                (env->cells[row * SIDE + column] & BLOCK) == block) {
                return true;
            }
        }
    }
    return false;
}

ENV_FN void craft(CraftaxClassic ENV_PTR* env, int tool) {
    const int materials = MATERIALS[tool];
    for (int item = 0; item < materials; item++) {
        if (env->inventory[item] < 1) {
            return;
        }
    }
    if (!is_near(env, CRAFTING_TABLE) || (materials == 4 && !is_near(env, FURNACE))) {
        return;
    }
    for (int item = 0; item < materials; item++) {
        env->inventory[item] -= 1;
    }
    env->inventory[ITEM_WOOD_PICKAXE + tool] += 1;
    unlock(env, MAKES[tool]);
}

// Return the damage of the player's attack, which depends on the swords in the inventory, as in the
// original game.
ENV_FN int attack_damage(const CraftaxClassic ENV_PTR* env) {
    const int wood = 2 * env->inventory[ITEM_WOOD_SWORD];
    const int stone = 3 * env->inventory[ITEM_STONE_SWORD];
    const int iron = 5 * env->inventory[ITEM_IRON_SWORD];
    return most(most(1, wood), most(stone, iron));
}

// Let the player hit the first mob of a kind that is in a cell. Return 0 if there is none, 1 if it
// lives, 2 if it is dead.
ENV_FN int hit(Mob ENV_PTR* mobs, int count, int row, int column, int damage) {
    int outcome = 0;
    for (int i = 0; i < count; i++) {
        Mob ENV_PTR* mob = &mobs[i];
        if (outcome == 0 && mob->alive && mob->row == row && mob->column == column) {
            mob->health -= damage;
            outcome = mob->health > 0 ? 1 : 2;
        }
        mob->alive = mob->health > 0;  // also revives dead ones with health, as in the original
    }
    return outcome;
}

ENV_FN void collect(
    CraftaxClassic ENV_PTR* env, int row, int column, int left, int item, int achievement) {
    put(env, row, column, left);
    env->inventory[item] += 1;
    unlock(env, achievement);
}

ENV_FN void eat_plant(CraftaxClassic ENV_PTR* env, int row, int column) {
    put(env, row, column, PLANT);
    env->food = least(FULL, env->food + 4);
    env->hunger = 0.0f;
    unlock(env, EAT_PLANT);
    int eaten = 0;
    for (int i = PLANTS - 1; i >= 0; i--) {
        eaten = env->plants[i].row == row && env->plants[i].column == column ? i : eaten;
    }
    env->plants[eaten].age = 0;
}

// Let the player act on the cell ahead: attack the mob there; if there is none, take the block.
ENV_FN void interact(CraftaxClassic ENV_PTR* env) {
    const int row = env->row + STEP_DOWN[env->facing];
    const int column = env->column + STEP_RIGHT[env->facing];
    const int damage = attack_damage(env);
    const int zombie = hit(env->zombies, ZOMBIES, row, column, damage);
    const int cow = hit(env->cows, COWS, row, column, damage);
    const int skeleton = hit(env->skeletons, SKELETONS, row, column, damage);
    if (zombie == 2) {
        unlock(env, DEFEAT_ZOMBIE);
    }
    if (cow == 2) {
        unlock(env, EAT_COW);
        env->food = least(FULL, env->food + 6);
        env->hunger = 0.0f;
    }
    if (skeleton == 2) {
        unlock(env, DEFEAT_SKELETON);
    }
    if (!inside(row, column)) {
        return;
    }
    if (zombie == 2 || cow == 2 || skeleton == 2) {
        env->cells[row * SIDE + column] &= BLOCK;
    }
    if (zombie + cow + skeleton > 0) {
        return;
    }
    switch (env->cells[row * SIDE + column] & BLOCK) {
        case TREE:
            collect(env, row, column, GRASS, ITEM_WOOD, COLLECT_WOOD);
            break;
        case STONE:
            if (env->inventory[ITEM_WOOD_PICKAXE] > 0) {
                collect(env, row, column, PATH, ITEM_STONE, COLLECT_STONE);
            }
            break;
        case COAL:
            if (env->inventory[ITEM_WOOD_PICKAXE] > 0) {
                collect(env, row, column, PATH, ITEM_COAL, COLLECT_COAL);
            }
            break;
        case IRON:
            if (env->inventory[ITEM_STONE_PICKAXE] > 0) {
                collect(env, row, column, PATH, ITEM_IRON, COLLECT_IRON);
            }
            break;
        case DIAMOND:
            if (env->inventory[ITEM_IRON_PICKAXE] > 0) {
                collect(env, row, column, PATH, ITEM_DIAMOND, COLLECT_DIAMOND);
            }
            break;
        case GRASS:
            if (LIKELY(DRAW(env, SAPLING_CHANCE), 0.1f)) {
                collect(env, row, column, GRASS, ITEM_SAPLING, COLLECT_SAPLING);
            }
            break;
        case WATER:
            env->drink = least(FULL, env->drink + 1);
            env->thirst = 0.0f;
            unlock(env, COLLECT_DRINK);
            break;
        case RIPE_PLANT:
            eat_plant(env, row, column);
            break;
        default:
            break;
    }
}

ENV_FN void plant(CraftaxClassic ENV_PTR* env, int row, int column) {
    put(env, row, column, PLANT);
    env->inventory[ITEM_SAPLING] -= 1;
    unlock(env, PLACE_PLANT);
    for (int i = 0; i < PLANTS; i++) {  // a plant without a free slot never ripens
        if (!env->plants[i].grows) {
            env->plants[i].row = row;
            env->plants[i].column = column;
            env->plants[i].age = 0;
            env->plants[i].grows = 1;
            return;
        }
    }
}

ENV_FN void place(CraftaxClassic ENV_PTR* env, int action) {
    const int row = env->row + STEP_DOWN[env->facing];
    const int column = env->column + STEP_RIGHT[env->facing];
    if (!inside(row, column)) {
        return;
    }
    const int cell = env->cells[row * SIDE + column];
    const bool open = !any_of(SOLID, cell);
    int ENV_PTR* items = env->inventory;
    if ((cell & MOB_HERE) != 0) {
        return;
    }
    if (action == ACT_PLACE_TABLE && open && items[ITEM_WOOD] >= 2) {
        put(env, row, column, CRAFTING_TABLE);
        items[ITEM_WOOD] -= 2;
        unlock(env, PLACE_TABLE);
    } else if (action == ACT_PLACE_FURNACE && open && items[ITEM_STONE] > 0) {
        put(env, row, column, FURNACE);
        items[ITEM_STONE] -= 1;
        unlock(env, PLACE_FURNACE);
    } else if (action == ACT_PLACE_STONE && (open || cell == WATER) && items[ITEM_STONE] > 0) {
        put(env, row, column, STONE);
        items[ITEM_STONE] -= 1;
        unlock(env, PLACE_STONE);
    } else if (action == ACT_PLACE_PLANT && cell == GRASS && items[ITEM_SAPLING] > 0) {
        plant(env, row, column);
    }
}

// Turn the player in a direction, and walk to the next cell if it is free or lava. Lava outside the
// world is found as in the original game.
ENV_FN void walk(CraftaxClassic ENV_PTR* env, int action) {
    const int row = env->row + STEP_DOWN[action];
    const int column = env->column + STEP_RIGHT[action];
    env->facing = action;
    if (is_free(env, row, column) || (cell_at(env, row, column) & BLOCK) == LAVA) {
        env->row = row;
        env->column = column;
    }
}

// ---- Mobs ---------------------------------------------------------------------------------------

// Return the step with which a mob approaches the player, along the longer axis; `tie` decides
// between equal axes.
ENV_FN void aim(
    const CraftaxClassic ENV_PTR* env, const Mob ENV_PTR* mob, int tie, int ENV_PTR* down,
    int ENV_PTR* right) {
    const int rows = env->row - mob->row;
    const int columns = env->column - mob->column;
    const int longer = size_of(rows) - size_of(columns);
    const bool along_rows = longer == 0 ? tie % 2 == 0 : longer > 0;
    *down = along_rows ? sign_of(rows) : 0;
    *right = along_rows ? 0 : sign_of(columns);
}

// Move a mob to a cell if the mob may enter it. A mob out of the player's sight vanishes.
ENV_FN void move_mob(CraftaxClassic ENV_PTR* env, Mob ENV_PTR* mob, int row, int column) {
    const bool in_sight = steps_to_player(env, mob->row, mob->column) < OUT_OF_SIGHT;
    const bool moves = is_free(env, row, column);
    if (mob->alive) {
        env->cells[mob->row * SIDE + mob->column] &= BLOCK;
    }
    if (moves) {
        mob->row = row;
        mob->column = column;
    }
    mob->alive = mob->alive && in_sight;
    if (mob->alive) {
        env->cells[mob->row * SIDE + mob->column] |= MOB_HERE;
    }
}

ENV_FN void move_zombie(CraftaxClassic ENV_PTR* env, int i) {
    Mob ENV_PTR* zombie = &env->zombies[i];
    const int distance = steps_to_player(env, zombie->row, zombie->column);
    const int way = 1 + DRAW(env, ZOMBIE_WAY + i) % 4;
    int down = STEP_DOWN[way];
    int right = STEP_RIGHT[way];
    if (distance < 10 && LIKELY(DRAW(env, ZOMBIE_CHASES + i), 0.75f)) {
        aim(env, zombie, DRAW(env, ZOMBIE_AXIS + i), &down, &right);
    }
    zombie->cooldown -= 1;
    if (distance == 1 && zombie->cooldown < 0 && zombie->alive) {
        env->health -= env->sleeping ? 7 : 2;
        if (env->sleeping) {
            unlock(env, WAKE_UP);
        }
        env->sleeping = 0;
        zombie->cooldown = 5;
        down = 0;
        right = 0;
    }
    move_mob(env, zombie, zombie->row + down, zombie->column + right);
}

// Move a cow by one cell in a random direction, or in half of its steps not at all.
ENV_FN void move_cow(CraftaxClassic ENV_PTR* env, int i) {
    Mob ENV_PTR* cow = &env->cows[i];
    const int way = 1 + DRAW(env, COW_WAY + i) % 8;
    const bool rests = way > 4;
    const int down = rests ? 0 : STEP_DOWN[way];
    const int right = rests ? 0 : STEP_RIGHT[way];
    move_mob(env, cow, cow->row + down, cow->column + right);
}

ENV_FN void shoot(CraftaxClassic ENV_PTR* env, const Mob ENV_PTR* skeleton, int down, int right) {
    for (int i = 0; i < ARROWS; i++) {
        Arrow ENV_PTR* arrow = &env->arrows[i];
        if (!arrow->alive) {
            arrow->row = skeleton->row;
            arrow->column = skeleton->column;
            arrow->down = down;
            arrow->right = right;
            arrow->alive = 1;
            return;
        }
    }
}

// Move a skeleton, and let it shoot arrows. It walks at random, and sometimes approaches if it is
// far from the player or retreats if it is close.
ENV_FN void move_skeleton(CraftaxClassic ENV_PTR* env, int i) {
    Mob ENV_PTR* skeleton = &env->skeletons[i];
    const int distance = steps_to_player(env, skeleton->row, skeleton->column);
    const bool close = distance <= 3;
    const int way = 1 + DRAW(env, SKELETON_WAY + i) % 4;
    int down = STEP_DOWN[way];
    int right = STEP_RIGHT[way];
    int aim_down;
    int aim_right;
    aim(env, skeleton, DRAW(env, SKELETON_AXIS + i), &aim_down, &aim_right);
    if ((float)DRAW(env, SKELETON_AIMS + i) > 0.85f * 2147483648.0f && (close || distance >= 10)) {
        down = close ? -aim_down : aim_down;
        right = close ? -aim_right : aim_right;
    }
    const bool cornered = close && !is_free(env, skeleton->row + down, skeleton->column + right);
    const bool shoots = cornered || distance == 4 || distance == 5;
    skeleton->cooldown -= 1;
    if (shoots && skeleton->cooldown < 0 && skeleton->alive) {
        shoot(env, skeleton, aim_down, aim_right);
        skeleton->cooldown = 4;
        down = 0;
        right = 0;
    }
    move_mob(env, skeleton, skeleton->row + down, skeleton->column + right);
}

// Move a flying arrow by one cell. It also flies over water, and destroys a table or a furnace.
ENV_FN void move_arrow(CraftaxClassic ENV_PTR* env, Arrow ENV_PTR* arrow) {
    arrow->row += arrow->down;
    arrow->column += arrow->right;
    if (!arrow->alive) {
        return;
    }
    const int row = arrow->row;
    const int column = arrow->column;
    const int cell = cell_at(env, row, column);
    const bool at_player = has_player(env, row, column);
    const bool stopped = any_of(SOLID & ~BIT(WATER), cell) || (cell & MOB_HERE) != 0 || at_player;
    if (at_player) {
        env->health -= 2;
        env->sleeping = 0;
    }
    if (any_of(BIT(FURNACE) | BIT(CRAFTING_TABLE), cell) && row < SIDE && column < SIDE) {
        put(env, reads(row), reads(column), PATH);  // also outside the world, as in the original
    }
    arrow->alive = inside(row, column) && !stopped;
}

ENV_FN void move_mobs(CraftaxClassic ENV_PTR* env) {
    for (int i = 0; i < ZOMBIES; i++) {
        move_zombie(env, i);
    }
    for (int i = 0; i < COWS; i++) {
        move_cow(env, i);
    }
    for (int i = 0; i < SKELETONS; i++) {
        move_skeleton(env, i);
    }
    for (int i = 0; i < ARROWS; i++) {
        move_arrow(env, &env->arrows[i]);
    }
}

// Count the cells where a mob can spawn: free cells with one of the given blocks that are in the
// player's sight and more than `nearest` steps away. With `rank` >= 0 return the rank-th of them
// instead, row by row.
ENV_FN int spawn_cell(const CraftaxClassic ENV_PTR* env, unsigned int blocks, int nearest,
                      int rank) {
    int count = 0;
    for (int down = 1 - OUT_OF_SIGHT; down < OUT_OF_SIGHT; down++) {
        const int row = env->row + down;
        const int across = OUT_OF_SIGHT - 1 - size_of(down);
        if (row < 0 || row >= SIDE) {
            continue;
        }
        const int end = least(SIDE - 1, env->column + across);
        for (int column = most(0, env->column - across); column <= end; column++) {
            const int cell = env->cells[row * SIDE + column];
            const bool far = size_of(down) + size_of(env->column - column) > nearest;
            if (far && (cell & MOB_HERE) == 0 && any_of(blocks, cell)) {
                if (count == rank) {
                    return row * SIDE + column;
                }
                count += 1;
            }
        }
    }
    return count;
}

ENV_FN int first_dead(const Mob ENV_PTR* mobs, int count) {
    for (int i = 0; i < count; i++) {
        if (!mobs[i].alive) {
            return i;
        }
    }
    return count;
}

// Spawn a mob in a random suitable cell, if there is a free slot and such a cell. `choice` is the
// random number that selects the cell.
ENV_FN void spawn(
    CraftaxClassic ENV_PTR* env, Mob ENV_PTR* mobs, int count, int health, unsigned int blocks,
    int nearest, int choice) {
    const int slot = first_dead(mobs, count);
    if (slot == count) {
        return;
    }
    const int cells = spawn_cell(env, blocks, nearest, -1);
    if (cells == 0) {
        return;
    }
    const int cell = spawn_cell(env, blocks, nearest, DRAW(env, choice) % cells);
    mobs[slot].row = cell / SIDE;
    mobs[slot].column = cell % SIDE;
    mobs[slot].health = health;
    mobs[slot].alive = 1;
    env->cells[cell] |= MOB_HERE;
}

// Mark the cell of the first mob of a kind as occupied again while all mobs of this kind live, as
// in the original game.
ENV_FN void mark_first(CraftaxClassic ENV_PTR* env, const Mob ENV_PTR* mobs, int count) {
    if (first_dead(mobs, count) == count) {
        env->cells[mobs[0].row * SIDE + mobs[0].column] |= MOB_HERE;
    }
}

ENV_FN void spawn_mobs(CraftaxClassic ENV_PTR* env) {
    const float dark = 1.0f - env->light;
    mark_first(env, env->cows, COWS);
    if (LIKELY(DRAW(env, COW_CHANCE), 0.1f)) {
        spawn(env, env->cows, COWS, COW_HEALTH, BIT(GRASS), 3, COW_CELL);
    }
    mark_first(env, env->zombies, ZOMBIES);
    if (LIKELY(DRAW(env, ZOMBIE_CHANCE), 0.02f + 0.1f * (dark * dark))) {
        spawn(env, env->zombies, ZOMBIES, ZOMBIE_HEALTH, BIT(GRASS) | BIT(PATH), 9, ZOMBIE_CELL);
    }
    mark_first(env, env->skeletons, SKELETONS);
    if (LIKELY(DRAW(env, SKELETON_CHANCE), 0.05f)) {
        spawn(env, env->skeletons, SKELETONS, SKELETON_HEALTH, BIT(PATH), 9, SKELETON_CELL);
    }
}

// ---- Plants, hunger, day and night --------------------------------------------------------------

ENV_FN void grow_plants(CraftaxClassic ENV_PTR* env) {
    for (int i = 0; i < PLANTS; i++) {
        Plant ENV_PTR* plant = &env->plants[i];
        plant->age = plant->grows ? plant->age + 1 : 0;
        if (plant->age >= RIPE_AGE) {
            put(env, plant->row, plant->column, RIPE_PLANT);
        }
    }
}

// Advance a counter of the player's hunger or thirst. When it reaches `end`, it restarts and costs
// a point of food or drink. Return the points that are left.
ENV_FN int use_up(float ENV_PTR* counter, float step, float end, int points) {
    *counter += step;
    if (*counter <= end) {
        return points;
    }
    *counter = 0.0f;
    return most(points - 1, 0);
}

ENV_FN void sleep_or_wake(CraftaxClassic ENV_PTR* env, int action) {
    if (action == ACT_SLEEP && env->energy < FULL) {
        env->sleeping = 1;
    }
    if (env->sleeping && env->energy >= FULL) {
        env->sleeping = 0;
        unlock(env, WAKE_UP);
    }
}

ENV_FN void live(CraftaxClassic ENV_PTR* env) {
    const bool sleeping = env->sleeping != 0;
    env->food = use_up(&env->hunger, sleeping ? 0.5f : 1.0f, 25.0f, env->food);
    env->drink = use_up(&env->thirst, sleeping ? 0.5f : 1.0f, 20.0f, env->drink);
    env->fatigue += sleeping ? -1.0f : 1.0f;
    if (sleeping && env->fatigue > 0.0f) {
        env->fatigue = 0.0f;
    }
    if (env->fatigue > 30.0f) {
        env->energy = most(env->energy - 1, 0);
        env->fatigue = 0.0f;
    } else if (env->fatigue < -10.0f) {
        env->energy = least(env->energy + 1, FULL);
        env->fatigue = 0.0f;
    }
    const bool well = env->food > 0 && env->drink > 0 && (env->energy > 0 || sleeping);
    const float better = sleeping ? 2.0f : 1.0f;
    const float worse = sleeping ? -0.5f : -1.0f;
    env->recovery += well ? better : worse;
    if (env->recovery > 25.0f) {
        env->health = least(env->health + 1, FULL);
        env->recovery = 0.0f;
    } else if (env->recovery < -15.0f) {
        env->health -= 1;
        env->recovery = 0.0f;
    }
}

// Return the daylight, 0 at night to 1 at noon. An episode begins in the morning.
ENV_FN float light_at(int tick) {
    const float days = (float)tick * DAYS;
    const float cosine = fabsf(cosf(3.14159265f * (days - (float)(int)days + 0.3f)));
    return 1.0f - cosine * cosine * cosine;
}

// ---- A new life ---------------------------------------------------------------------------------

ENV_FN void bury(Mob ENV_PTR* mobs, int count, int health) {
    for (int i = 0; i < count; i++) {
        mobs[i].row = 0;
        mobs[i].column = 0;
        mobs[i].health = health;
        mobs[i].cooldown = 0;
        mobs[i].alive = 0;
    }
}

// Begin a new episode: reset the player, mobs and plants, that is, everything but the world.
ENV_FN void begin_life(CraftaxClassic ENV_PTR* env) {
    env->tick = 0;
    env->light = light_at(0);
    env->episode_return = 0.0f;
    env->unlocked = 0;
    env->row = SIDE / 2;
    env->column = SIDE / 2;
    env->facing = ACT_UP;
    env->health = FULL;
    env->food = FULL;
    env->drink = FULL;
    env->energy = FULL;
    env->sleeping = 0;
    env->recovery = 0.0f;
    env->hunger = 0.0f;
    env->thirst = 0.0f;
    env->fatigue = 0.0f;
    for (int item = 0; item < ITEMS; item++) {
        env->inventory[item] = 0;
    }
    bury(env->zombies, ZOMBIES, 1);  // dead, in a corner, some with health, as in the original
    bury(env->cows, COWS, COW_HEALTH);
    bury(env->skeletons, SKELETONS, 0);
    for (int i = 0; i < ARROWS; i++) {
        env->arrows[i].row = 0;
        env->arrows[i].column = 0;
        env->arrows[i].down = 1;
        env->arrows[i].right = 1;
        env->arrows[i].alive = 0;
    }
    for (int i = 0; i < PLANTS; i++) {
        env->plants[i].row = 0;
        env->plants[i].column = 0;
        env->plants[i].age = 0;
        env->plants[i].grows = 0;
    }
}

// ---- Observation --------------------------------------------------------------------------------

// Mark a mob in the player's view in the observation. A dead mob clears the mark of its cell. For a
// mob above or to the left of the view, a cell counted from the opposite side is cleared, as in the
// original game.
ENV_FN void show(CraftaxClassic ENV_PTR* env, int kind, int row, int column, int alive) {
    int down = row - env->row + VIEW_ROWS / 2;
    int right = column - env->column + VIEW_COLUMNS / 2;
    const bool seen = alive && down >= 0 && down < VIEW_ROWS && right >= 0 && right < VIEW_COLUMNS;
    down += down < 0 ? VIEW_ROWS : 0;
    right += right < 0 ? VIEW_COLUMNS : 0;
    if (down >= 0 && down < VIEW_ROWS && right >= 0 && right < VIEW_COLUMNS) {
        const int cell = down * VIEW_COLUMNS + right;
        env->observations[cell * CELL_NUMBERS + BLOCKS + kind] = seen ? 1.0f : 0.0f;
    }
}

// Write the observation of Craftax: 7 x 9 cells, each a one-hot block (17) and zombie, cow,
// skeleton, arrow; then 12 items, health, food, drink, energy in tenths; left, right, up, down;
// light; asleep.
ENV_FN void write_observations(CraftaxClassic ENV_PTR* env) {
    for (int i = 0; i < NUMBERS; i++) {
        env->observations[i] = 0.0f;
    }
    int at = 0;
    for (int down = -(VIEW_ROWS / 2); down <= VIEW_ROWS / 2; down++) {
        for (int right = -(VIEW_COLUMNS / 2); right <= VIEW_COLUMNS / 2; right++) {
            const int row = env->row + down;
            const int column = env->column + right;
            const bool known = inside(row, column);
            const int block = known ? env->cells[row * SIDE + column] & BLOCK : OUT_OF_BOUNDS;
            env->observations[at + block] = 1.0f;
            at += CELL_NUMBERS;
        }
    }
    for (int i = 0; i < ZOMBIES; i++) {
        show(env, 0, env->zombies[i].row, env->zombies[i].column, env->zombies[i].alive);
    }
    for (int i = 0; i < COWS; i++) {
        show(env, 1, env->cows[i].row, env->cows[i].column, env->cows[i].alive);
    }
    for (int i = 0; i < SKELETONS; i++) {
        show(env, 2, env->skeletons[i].row, env->skeletons[i].column, env->skeletons[i].alive);
    }
    for (int i = 0; i < ARROWS; i++) {
        show(env, 3, env->arrows[i].row, env->arrows[i].column, env->arrows[i].alive);
    }
    for (int item = 0; item < ITEMS; item++) {
        env->observations[at++] = TENTHS[env->inventory[item]];
    }
    env->observations[at++] = TENTHS[env->health];
    env->observations[at++] = TENTHS[env->food];
    env->observations[at++] = TENTHS[env->drink];
    env->observations[at++] = TENTHS[env->energy];
    env->observations[at + env->facing - ACT_LEFT] = 1.0f;
    env->observations[at + 4] = env->light;
    env->observations[at + 5] = env->sleeping ? 1.0f : 0.0f;
}

// ---- A new world --------------------------------------------------------------------------------

// A world is made in stages. Several threads of a GPU, or one of a CPU, each do a part of a stage. A
// stage begins when all parts of the previous one are done. One thread makes the random choices.
#define BEGIN_STAGES 6

// Perlin noise: each cell mixes the four directions around it in a grid of directions.

// The observation's memory holds the directions, 1272 of its 1345 elements, and after them the
// minimum and maximum of each noise.
#define EXTREMES (2 * ANGLES)
#define RICH 0x20    // flag of a stone cell with open random choices: a diamond is possible
#define MOLTEN 0x40  // the cell is lava whatever the choices are

ENV_FN float fade(float t) {
    return t * t * t * (t * (t * 6.0f - 15.0f) + 10.0f);
}

ENV_FN float raw_noise(const CraftaxClassic ENV_PTR* env, int noise, int row, int column) {
    // log2 of the cells from one direction to the next
    const int down = noise == PATHS ? 3 : noise == TREES ? 2 : 4;
    const int across = noise == PATHS ? 1 : noise == TREES ? 2 : 4;
    const int first = noise == WATERS      ? WATER_ANGLES
                      : noise == MOUNTAINS ? MOUNTAIN_ANGLES
                      : noise == PATHS     ? PATH_ANGLES
                                           : TREE_ANGLES;
    const int nodes_across = (SIDE >> across) + 1;
    const int node_row = row >> down;
    const int node_column = column >> across;
    const int above = 2 * (first + node_row * nodes_across + node_column);
    const int below = above + 2 * nodes_across;
    const float y = (float)row / (float)(1 << down) - (float)node_row;
    const float x = (float)column / (float)(1 << across) - (float)node_column;
    const float up = 1.0f - y;
    const float right = x - 1.0f;
    const float above_left = y * env->observations[above] + x * env->observations[above + 1];
    const float below_left = x * env->observations[below + 1] - up * env->observations[below];
    const float above_right =
        y * env->observations[above + 2] + right * env->observations[above + 3];
    const float below_right =
        right * env->observations[below + 3] - up * env->observations[below + 2];
    const float ty = fade(y);
    const float tx = fade(x);
    const float at_left = above_left * (1.0f - ty) + ty * below_left;
    const float at_right = above_right * (1.0f - ty) + ty * below_right;
    return (1.0f - tx) * at_left + tx * at_right;
}

// Return the value of a noise field at a cell of the world, scaled to 0..1.
ENV_FN float noise_at(const CraftaxClassic ENV_PTR* env, int noise, int row, int column) {
    const float low = env->observations[EXTREMES + 2 * noise];
    const float high = env->observations[EXTREMES + 2 * noise + 1];
    return (raw_noise(env, noise, row, column) - low) / (high - low);
}

// One thread's part of the world: some columns of some rows.
#define EACH_CELL(part, parts)                                                                \
    for (int row = (part) / least(parts, SIDE); row < SIDE; row += most(1, (parts) / SIDE))   \
        for (int column = (part) % least(parts, SIDE); column < SIDE; column += least(parts, SIDE))

// Compute the minimum and maximum of a noise field over one thread's part of the world.
ENV_FN void seek_extremes(CraftaxClassic ENV_PTR* env, int noise, int part, int parts) {
    float low = raw_noise(env, noise, 0, 0);
    float high = low;
    EACH_CELL(part, parts) {
        const float value = raw_noise(env, noise, row, column);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    env->extremes[part][2 * noise] = low;
    env->extremes[part][2 * noise + 1] = high;
}

// Return the minimum or maximum of a noise field over the world, combined from those of all
// threads' parts; an even `kind` is a minimum.
ENV_FN float extreme(const CraftaxClassic ENV_PTR* env, int kind, int parts) {
    float found = env->extremes[0][kind];
    for (int part = 1; part < parts; part++) {
        const float value = env->extremes[part][kind];
        const bool further = kind % 2 == 0 ? value < found : value > found;
        found = further ? value : found;
    }
    return found;
}

// Return the block that noise fields plan for a cell of a new world. Blocks STONE and TREE are
// still replaced at random (draw_block).
ENV_FN int plan(const CraftaxClassic ENV_PTR* env, int row, int column) {
    const int steps = size_of(row - SIDE / 2) + size_of(column - SIDE / 2);
    const float near = steps < 5 ? (float)steps / 5.0f : 1.0f;  // neither mountains nor water at the start
    const float water = noise_at(env, WATERS, row, column) + near - 1.0f;
    const float mountain = noise_at(env, MOUNTAINS, row, column) + 0.05f + near - 1.0f;
    const float tree = noise_at(env, TREES, row, column);
    if (mountain > 0.7f) {
        const bool path = (mountain > 0.85f && water > 0.4f) ||
                          noise_at(env, PATHS, row, column) > 0.8f ||
                          noise_at(env, PATHS, column, row) > 0.8f;
        const bool lava = mountain > 0.85f && tree > 0.7f;
        if (path) {
            return lava ? LAVA : PATH;
        }
        return STONE | (mountain > 0.8f ? RICH : 0) | (lava ? MOLTEN : 0);
    }
    return water > 0.7f ? WATER : water > 0.6f ? SAND : tree > 0.5f ? TREE : GRASS;
}

// Return the final block of a cell in a new world: the planned block, or its random replacement,
// such as coal in stone.
ENV_FN int draw_block(CraftaxClassic ENV_PTR* env, int cell, int planned) {
    int block = planned & BLOCK;
    if (block == TREE) {
        const bool grown = (float)DRAW(env, TREE_CHANCE + cell) > 0.8f * 2147483648.0f;
        return grown ? TREE : GRASS;
    }
    if (block != STONE) {
        return block;
    }
    if (LIKELY(DRAW(env, COAL_CHANCE + cell), 0.04f)) {
        block = COAL;
    }
    if (block == STONE && LIKELY(DRAW(env, IRON_CHANCE + cell), 0.03f)) {
        block = IRON;
    }
    if (block == STONE && (planned & RICH) && LIKELY(DRAW(env, DIAMOND_CHANCE + cell), 0.005f)) {
        block = DIAMOND;
    }
    return planned & MOLTEN ? LAVA : block;
}

ENV_FN void draw_blocks(CraftaxClassic ENV_PTR* env) {
    int stones = 0;
    for (int cell = 0; cell < SIDE * SIDE; cell++) {
        const int block = draw_block(env, cell, env->cells[cell]);
        env->cells[cell] = (uint8_t)block;
        stones += block == STONE ? 1 : 0;
    }
    env->cells[env->row * SIDE + env->column] = GRASS;  // never stone, so it is no mountain
    if (stones == 0) {
        return;
    }
    int left = DRAW(env, DIAMOND_CELL) % stones;  // stone cells before the one that becomes a diamond
    for (int cell = 0; left >= 0; cell++) {
        if (env->cells[cell] == STONE && left-- == 0) {
            env->cells[cell] = DIAMOND;
        }
    }
}

// Compute one part of one stage of a new world: a GPU thread's part, on a CPU part 0 of 1. The last
// stage writes the observation.
ENV_FN void c_begin(CraftaxClassic ENV_PTR* env, int stage, int part, int parts) {
    const int makers = least(parts, MAKERS);
    if (stage == 0 && part == 0) {
        for (int node = 0; node < ANGLES; node++) {
            env->observations[2 * node] = 6.2831853f * ((float)DRAW(env, node) / 2147483648.0f);
        }
    } else if (stage == 1) {
        for (int node = part; node < ANGLES; node += parts) {
            const float angle = env->observations[2 * node];
            env->observations[2 * node] = cosf(angle);
            env->observations[2 * node + 1] = sinf(angle);
        }
    } else if (stage == 2 && part < makers) {
        seek_extremes(env, WATERS, part, makers);
        seek_extremes(env, MOUNTAINS, part, makers);
        seek_extremes(env, PATHS, part, makers);
        seek_extremes(env, TREES, part, makers);
    } else if (stage == 3) {
        for (int kind = part; kind < 2 * NOISES; kind += parts) {
            env->observations[EXTREMES + kind] = extreme(env, kind, makers);
        }
    } else if (stage == 4) {
        EACH_CELL(part, parts) {
            env->cells[row * SIDE + column] = (uint8_t)plan(env, row, column);
        }
    } else if (stage == 5 && part == 0) {
        draw_blocks(env);
        write_observations(env);
    }
}

ENV_FN void begin_episode(CraftaxClassic ENV_PTR* env) {
    begin_life(env);
    for (int stage = 0; stage < BEGIN_STAGES; stage++) {
        c_begin(env, stage, 0, 1);
    }
}

// ---- Step, episodes -----------------------------------------------------------------------------

// Advance the game Craftax by one step without ending the episode. Return the reward.
ENV_FN float play(CraftaxClassic ENV_PTR* env, int action) {
    const unsigned int unlocked = env->unlocked;
    const int health = env->health;
    action = env->sleeping ? ACT_NOOP : action;
    if (action >= ACT_MAKE_WOOD_PICKAXE) {
        craft(env, action - ACT_MAKE_WOOD_PICKAXE);
    } else if (action >= ACT_PLACE_STONE) {
        place(env, action);
    } else if (action == ACT_DO) {
        interact(env);
    } else if (action >= ACT_LEFT && action <= ACT_DOWN) {
        walk(env, action);
    }
    move_mobs(env);
    spawn_mobs(env);
    grow_plants(env);
    sleep_or_wake(env, action);
    live(env);
    for (int item = 0; item < ITEMS; item++) {
        env->inventory[item] = least(env->inventory[item], FULL);
    }
    const bool in_lava = (cell_at(env, env->row, env->column) & BLOCK) == LAVA;
    env->health = in_lava ? 0 : most(0, env->health);
    env->tick += 1;
    env->light = light_at(env->tick);
    const int gained = count_bits(env->unlocked) - count_bits(unlocked);
    const float health_gained = (float)(env->health - health) * 0.1f;
    return (float)gained + health_gained;
}

// Return true if the episode ends: the player is dead (lava sets health to 0), or the time is over.
ENV_FN bool is_over(const CraftaxClassic ENV_PTR* env) {
    return env->health <= 0 || env->tick >= LONGEST;
}

ENV_FN void add_log(CraftaxClassic ENV_PTR* env) {
    env->log.perf += env->episode_return / (float)ACHIEVEMENTS;
    env->log.score += env->episode_return;
    env->log.episode_return += env->episode_return;
    env->log.episode_length += (float)env->tick;
    env->log.achievements += (float)count_bits(env->unlocked);
    for (int i = 0; i < ACHIEVEMENTS; i++) {
        env->log.unlocked[i] += (float)(env->unlocked >> i & 1u);
    }
    env->log.n += 1.0f;
}

ENV_FN void c_reset(CraftaxClassic ENV_PTR* env) {
    begin_episode(env);
}

ENV_FN void c_step(CraftaxClassic ENV_PTR* env) {
    const float reward = play(env, (int)env->actions[0]);
    env->rewards[0] = reward;
    env->episode_return += reward;
    if (!is_over(env)) {
        write_observations(env);
        return;
    }
    env->terminals[0] = 1.0f;
    add_log(env);
#ifdef BEGINS_LATER
    begin_life(env);
#else
    begin_episode(env);
#endif
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(CraftaxClassic ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(CraftaxClassic ENV_PTR* env) {
    (void)env;
}
