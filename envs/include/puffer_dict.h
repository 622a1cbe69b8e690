// Dict: a small map from text to numbers, for environments of PufferLib 4.0 and 5.0. vecenv.h has
// the functions with which 4.0's read it, ini.h those of 5.0's.

#ifndef PUFFER_DICT_STRUCT_H
#define PUFFER_DICT_STRUCT_H

#include <stdbool.h>

typedef struct {
    const char* key;
    double value;  // a list's first number; 0 if the text is no number
    void* ptr;     // unused; member of 4.0's struct
    // Members of 5.0's struct; NULL and 0 if only a number is known.
    char* str;       // the text as written
    double* values;  // all numbers of a list
    int len;
    // The rest is ours: for messages about the configuration when environments are created.
    bool read;             // the environment looked it up
    bool missing;          // added by 4.0's dict_get because the key was missing
    const char* expected;  // set by dict_reject: the legal values
} DictItem;

typedef struct {
    const char* name;  // name of the section
    DictItem* items;
    int size;
    int capacity;
    bool full;      // an item didn't fit
    DictItem lost;  // returned instead, so that 4.0's dict_get never returns NULL
} Dict;

#endif
