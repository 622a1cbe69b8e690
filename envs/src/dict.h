// What the stepper itself does with a Dict, beyond vecenv.h.

#ifndef PUFFER_DICT_H
#define PUFFER_DICT_H

#include "../include/vecenv.h"

void puffer_free_dict(Dict* dict);

// What ini.h's functions are made of.
DictItem* puffer_dict_find(Dict* dict, const char* key);
double puffer_dict_number(Dict* dict, const char* key);
const char* puffer_dict_text(Dict* dict, const char* key);
DictItem* puffer_dict_put(Dict* dict, const char* key, double value, const char* text);

// Where an item's text is a list of numbers, with commas, its `values`, `len` and `value`.
void puffer_dict_list(DictItem* item);

#endif
