// Dict: a small map from text to numbers, the same for environments of 4.0 and 5.0. What they call to
// read it differs: vecenv.h and ini.h have the functions of the one and the other.

#ifndef PUFFER_DICT_STRUCT_H
#define PUFFER_DICT_STRUCT_H

#include <stdbool.h>

typedef struct {
    const char* key;
    double value;  // of a list its first number; 0 if the text is no number
    void* ptr;     // 4.0's
    // 5.0's. NULL and 0 where only a number is known.
    char* str;       // as it was written
    double* values;  // of a list
    int len;
    // The rest is ours: what creation reports to the person who wrote the configuration.
    bool read;             // somebody looked it up
    bool missing;          // 4.0's dict_get made it up because the key wasn't there
    const char* expected;  // dict_reject: what would have been legal
} DictItem;

typedef struct {
    const char* name;  // of the section
    DictItem* items;
    int size;
    int capacity;
    bool full;      // an item didn't fit
    DictItem lost;  // stands in for it, so that 4.0's dict_get never returns NULL
} Dict;

#endif
