// The state of all environments as one run of bytes. Whoever calls keeps them from stepping.
//
//     Head                            what both sides must agree on
//     Record and its bytes, per environment, in order
//     observations, actions, rewards, terminals, masks: all N rows of each
//     what each environment's rand draws from, if it is called
//
// Every part is filled up to a multiple of 16 bytes with zeros. Numbers are the machine's own; who
// stores the bytes sees to it that the reader is of the same kind.

#ifndef PUFFER_STATE_H
#define PUFFER_STATE_H

#include "ops.h"
#include "text.h"

// The number of bytes; they are written unless `to` is NULL. agents: as for ops.
size_t puffer_write_state(const StaticVec* vec, const int* agents, unsigned char* to);

// False, with the reason, if the bytes don't fit; vec.h says what was changed then.
bool puffer_read_state(StaticVec* vec, const int* agents, const unsigned char* from, size_t size,
                       Text* text);

#endif
