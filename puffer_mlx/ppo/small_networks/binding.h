#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "ops/cpu/binding.h"
#include "ppo/small_networks/epoch.h"

namespace puffer {

// A layer's weight, bias, inputs, width and activation; a head's weight, bias, first row, rows and first column.
using Five = std::tuple<int, int, int, int, int>;

inline const Binding small_networks_binding([](nb::module_& m, nb::class_<Actor>&) {
  nb::class_<Network>(m, "Network")
      .def("__init__",
           [](Network* made, const std::vector<std::vector<Five>>& layers, const std::vector<std::vector<Five>>& heads,
              int logstd, std::vector<int> sizes) {
             new (made) Network{{}, {}, logstd, std::move(sizes)};
             for (auto& tower : layers) {
               made->layers.emplace_back();
               for (auto [weight, bias, inputs, width, kind] : tower)
                 made->layers.back().push_back({weight, bias, inputs, width, static_cast<Activation>(kind)});
             }
             for (auto& tower : heads) {
               made->heads.emplace_back();
               for (auto [weight, bias, row, count, column] : tower)
                 made->heads.back().push_back({weight, bias, row, count, column});
             }
           },
           "layers"_a, "heads"_a, "logstd"_a, "sizes"_a);
  m.def(
      "ppo_epoch",
      [](const Arrays& weights, const Arrays& momentum, const Arrays& second, const Array& made, const Array& lr,
         const Array& ent_coef, const Array& counts, const Array& observations, const Arrays& rollout,
         const std::optional<Array>& masks, const Array& order, const Network& network, float clip, float vf,
         float vf_clip, float max_norm, float largest_kl, double beta1, double beta2, double eps, double decay) {
        return ppo_epoch(weights, momentum, second, made, lr, ent_coef, counts, observations, rollout, masks, order,
                         network, {clip, vf, vf_clip, max_norm, largest_kl, {beta1, beta2, eps, decay}});
      },
      "weights"_a, "momentum"_a, "second"_a, "made"_a, "lr"_a, "ent_coef"_a, "counts"_a, "observations"_a,
      "rollout"_a, "masks"_a.none(), "order"_a, "network"_a, "clip"_a, "vf"_a, "vf_clip"_a, "max_norm"_a,
      "largest_kl"_a, "beta1"_a, "beta2"_a, "eps"_a, "decay"_a);
});

}  // namespace puffer
