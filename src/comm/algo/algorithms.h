#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/algo/net_call.h"
#include "comm/queue/steps.h"

// The collectives over messages (channel.h), between machines and, where one is asked for by name,
// between the ranks of one. Each is the part of an operation that moves what is too large to travel
// with its announcement, one algorithm per file. docs/collectives.md says what each costs.

namespace trireme::detail {

enum class Algorithm {
  kAutomatic,   // by size and number of ranks, among those that keep the order of summation
  kDirect,      // every rank with every other
  kRing,        // around a ring; its sums have an order of their own
  kTree,        // broadcasts down a binomial tree; what a tree cannot do goes direct
  kDoubling,    // announcements and what is small by recursive doubling, the rest direct
  kAggregator,  // one rank adds up for all
};

// Of "auto", "direct", "ring", "tree", "doubling", "aggregator"; throws ConfigError that lists
// them.
Algorithm algorithm_named(std::string_view name, const std::string& where);
std::string_view name_of(Algorithm algorithm);
bool keeps_order_of_sums(Algorithm algorithm);

// All ranks have announced themselves: everything is there already.
void finish_from_announcements(NetCall& call);

Steps direct_all_gather(NetCall& call, AllAnnounced& announced);
Steps direct_reduction(NetCall& call, AllAnnounced& announced);
// gather, scatter, all_to_all, neighbour_all_gather.
Steps direct_exchange(NetCall& call, AllAnnounced& announced, const NameOf& name);
Steps ring_all_gather(NetCall& call, AllAnnounced& announced);
Steps ring_reduction(NetCall& call, AllAnnounced& announced);
Steps tree_broadcast(NetCall& call, AllAnnounced& announced);
Steps aggregated_reduction(NetCall& call, AllAnnounced& announced);
// Announcements only, in the place of NetCall::announce_to_all.
Steps announce_by_doubling(NetCall& call);

}  // namespace trireme::detail
