// Runs a flow set in SimGrid (CM02 without TCP factors) and prints when each flow ends.
//
// Input, one a line: `link GB_S` and `flow FROM TO BYTES LINK...`; all flows start at time 0.
// Output: `wall SECONDS` of the simulation itself, then one end time a flow, seconds.
// Build: g++ -O2 flows.cpp -lsimgrid

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <simgrid/s4u.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Flow {
  int from, to;
  double bytes;
  std::vector<int> links;
};

int main(int argc, char** argv)
{
  sg4::Engine e(&argc, argv);
  if (argc < 2) {
    std::cerr << "usage: flows FILE\n";
    return 2;
  }
  e.set_config("network/model:CM02");
  e.set_config("network/bandwidth-factor:1");
  e.set_config("network/latency-factor:1");
  e.set_config("network/weight-S:0");
  e.set_config("network/TCP-gamma:0");
  e.set_config("network/crosstraffic:0");

  std::vector<double> capacities;
  std::vector<Flow> flows;
  std::ifstream in(argv[1]);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream s(line);
    std::string what;
    s >> what;
    if (what == "link") {
      double gb_s;
      s >> gb_s;
      capacities.push_back(gb_s);
    } else if (what == "flow") {
      Flow f;
      s >> f.from >> f.to >> f.bytes;
      int link;
      while (s >> link)
        f.links.push_back(link);
      flows.push_back(f);
    }
  }

  auto* zone = sg4::create_full_zone("all");
  std::map<int, sg4::Host*> hosts;
  auto host = [&](int i) {
    auto& h = hosts[i];
    if (h == nullptr)
      h = zone->create_host("h" + std::to_string(i), 1e9)->seal();
    return h;
  };
  for (const auto& f : flows) {
    host(f.from);
    host(f.to);
  }
  std::vector<sg4::Link*> links;
  for (size_t i = 0; i < capacities.size(); i++)
    links.push_back(zone->create_link("l" + std::to_string(i), capacities[i] * 1e9)->set_latency(0)->seal());
  std::set<std::pair<int, int>> routed;
  for (const auto& f : flows) {
    if (!routed.insert({f.from, f.to}).second)
      continue;
    std::vector<sg4::LinkInRoute> route;
    for (int l : f.links)
      route.emplace_back(links[l]);
    zone->add_route(host(f.from)->get_netpoint(), host(f.to)->get_netpoint(), nullptr, nullptr, route, false);
  }
  zone->seal();

  std::vector<double> ends(flows.size(), -1);
  sg4::Actor::create("start", host(flows.at(0).from), [&] {
    std::vector<sg4::CommPtr> comms;
    for (const auto& f : flows)
      comms.push_back(sg4::Comm::sendto_async(host(f.from), host(f.to), static_cast<uint64_t>(f.bytes)));
    for (size_t i = 0; i < comms.size(); i++) {
      comms[i]->wait();
      ends[i] = comms[i]->get_finish_time();
    }
  });
  auto before = std::chrono::steady_clock::now();
  e.run();
  std::chrono::duration<double> wall = std::chrono::steady_clock::now() - before;
  std::printf("wall %.9f\n", wall.count());
  for (double end : ends)
    std::printf("%.12f\n", end);
  return 0;
}
