/* test_cuda_teams.c - blocks are divided among steps such that every step gets what it needs
 *
 * Index arithmetic alone: it runs on machines without a GPU.
 */
#include "check.h"

#include "backend/cuda/teams.h"

enum { MOST_STEPS = 120 };

static void check_given(const tw__blocks *given, const int (*want)[2], int count) {
    for (int i = 0; i < count; i++) {
        check_scene("step %d", i);
        check_int("first block", given[i].first, want[i][0]);
        check_int("last block", given[i].last, want[i][1]);
    }
}

/* The one at the top of teams.h. */
static void test_example(void **state) {
    (void)state;
    static const tw__need needs[] = {{1, 1, 1},  {1, 1, 1},  {1, 1, 1},
                                     {30, 1, 8}, {10, 1, 8}, {5, 1, 8}};
    static const int want[][2] = {{0, 0}, {0, 0}, {1, 1}, {2, 6}, {7, 9}, {10, 11}};
    tw__blocks given[6];
    check_int("steps served", tw__divide_blocks(needs, 6, 12, given), 6);
    check_given(given, want, 6);
}

/* Nobody shares a block, and nobody has more than it wants. */
static void test_plenty(void **state) {
    (void)state;
    static const tw__need needs[] = {{9, 1, 1}, {1, 1, 1}, {30, 2, 3}, {10, 1, 8}};
    static const int want[][2] = {{0, 0}, {1, 1}, {2, 4}, {5, 12}};
    tw__blocks given[4];
    check_int("steps served", tw__divide_blocks(needs, 4, 132, given), 4);
    check_given(given, want, 4);
}

static int any_needs(oracle_rng *rng, int blocks, tw__need *needs) {
    int count = 1 + (int)oracle_below(rng, MOST_STEPS);
    int singles = (int)oracle_below(rng, count + 1);
    for (int i = 0; i < count; i++) {
        int most = i < singles || blocks == 1 ? 1 : 2 + (int)oracle_below(rng, blocks - 1);
        needs[i] = (tw__need){1 + oracle_below(rng, INT32_MAX),
                              1 + (int)oracle_below(rng, most < 4 ? most : 4), most};
    }
    return count;
}

/* Of one launch: steps follow each other without a gap, and only singles share a block. */
static void check_launch(const tw__need *needs, const tw__blocks *given, int count, int blocks) {
    check_int("first block of all", given[0].first, 0);
    check_between("last block of all", given[count - 1].last, 0, blocks - 1);
    for (int i = 0; i < count; i++)
        check_between("blocks", given[i].last - given[i].first + 1, needs[i].least, needs[i].most);
    for (int i = 1; i < count; i++) {
        int both = needs[i - 1].most == 1 && needs[i].most == 1;
        check_between("next block", given[i].first, given[i - 1].last + !both,
                      given[i - 1].last + 1);
    }
}

/* All launches that it takes; on GPUs of every size. */
static void test_any(void **state) {
    (void)state;
    for (int trial = 0; trial < 20000; trial++) {
        oracle_rng rng = {.key = (uint64_t)trial};
        tw__need needs[MOST_STEPS];
        tw__blocks given[MOST_STEPS] = {{0, 0}};
        int blocks = 1 + (int)oracle_below(&rng, trial % 2 == 0 ? 200 : 8);
        int count = any_needs(&rng, blocks, needs);
        for (int first = 0, served; first < count; first += served) {
            check_scene("trial=%d first=%d", trial, first);
            served = tw__divide_blocks(needs + first, count - first, blocks, given);
            check_between("steps served", served, 1, count - first);
            check_launch(needs + first, given, served, blocks);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_plenty),
        cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
