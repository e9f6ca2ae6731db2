// Who leads, agreed on in a real etcd whose members are killed and stopped, and what is refused.

#include "launch/leadership.h"

#include <atomic>
#include <fstream>

#include <gtest/gtest.h>

#include "launch/store_options.h"
#include "support/etcd.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

using testing::comes_true;
using testing::EtcdMembers;
using testing::run_program;

// A network that can be cut, in front of the real one.
class CutHttp final : public HttpClient {
 public:
  CutHttp(std::unique_ptr<HttpClient> real, std::shared_ptr<std::atomic<bool>> cut)
      : real_(std::move(real)), cut_(std::move(cut)) {}
  HttpAnswer post(const std::string& url,
                  const std::string& body,
                  const std::vector<std::string>& headers,
                  Milliseconds limit) override {
    if (*cut_) {
      HttpAnswer none;
      none.failure = "cut";
      return none;
    }
    return real_->post(url, body, headers, limit);
  }

 private:
  std::unique_ptr<HttpClient> real_;
  std::shared_ptr<std::atomic<bool>> cut_;
};

JobRecord some_settings(const std::string& heartbeat = "1") {
  JobRecord alike;
  alike.version = TRIREME_VERSION;
  alike.settings = {{"--nnodes", "3"}, {"--heartbeat", heartbeat}};
  return alike;
}

// A launcher's part in it.
struct Candidate {
  Candidate(const EtcdMembers& etcd, int machine, const JobRecord& alike = some_settings())
      : cut(std::make_shared<std::atomic<bool>>(false)),
        leadership({"job", alike, 2, 30, Milliseconds(50)},
                   EtcdClient({etcd.places(), {}, "", ""},
                              std::make_unique<CutHttp>(load_http_client({}), cut),
                              Milliseconds(400))) {
    leadership.seek({machine, "host", concat("127.0.0.1:", 100 + machine), ""}, "");
  }
  bool leads() const { return LeaseClock::now() < leadership.leads_until(); }
  // Whom it sees.
  int leader() const {
    const auto view = leadership.view();
    return view.leader ? view.leader->machine : -1;
  }

  std::shared_ptr<std::atomic<bool>> cut;
  Leadership leadership;
};

EtcdClient client_of(const EtcdMembers& etcd) {
  return {{etcd.places(), {}, "", ""}, load_http_client({}), Milliseconds(2000)};
}

// Whatever it is at first: members need a moment to find each other.
std::string lasting_trouble(const StoreOptions& store) {
  LaunchOptions options;
  options.command = {"app"};
  options.nodes = 2;
  options.elastic.emplace();
  options.elastic->heartbeat_seconds = 1;
  options.store = store;
  const auto leadership = make_leadership(options, Milliseconds(1000));
  leadership->seek({0, "host", "127.0.0.1:1", ""}, "");
  EXPECT_TRUE(comes_true([&] { return leadership->view().is_lasting; }))
      << leadership->view().trouble;
  return leadership->view().trouble;
}

class LeadershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = EtcdMembers::unavailable()) {
      GTEST_SKIP() << *reason;
    }
  }
};

TEST_F(LeadershipTest, IsOfOneAtATimeWhateverIsLost) {
  const EtcdMembers etcd(3);
  auto first = std::make_unique<Candidate>(etcd, 0);
  ASSERT_TRUE(comes_true([&] { return first->leads(); })) << first->leadership.view().trouble;
  Candidate second(etcd, 1);
  Candidate third(etcd, 2);
  std::atomic<bool> done = false;
  std::atomic<int> at_once = 0;
  std::atomic<Candidate*> other = first.get();
  std::thread watch([&] {
    while (!done) {
      // The later one first: whoever led then and does not now has not led with the next.
      Candidate* before = other;
      const bool new_leads = second.leads() || third.leads();
      at_once += new_leads && before != nullptr && before->leads() ? 1 : 0;
      at_once += second.leads() && third.leads() ? 1 : 0;
    }
  });
  ASSERT_TRUE(comes_true([&] { return second.leader() == 0 && third.leader() == 0; }));
  EXPECT_TRUE(first->leadership.begin_job({2, 2, 2}));

  // A member is killed: the leader stays.
  etcd.signal(0, SIGKILL);
  const auto killed = LeaseClock::now();
  ASSERT_TRUE(comes_true([&] { return LeaseClock::now() > killed + std::chrono::seconds(3); }));
  EXPECT_TRUE(first->leads());
  EXPECT_EQ(second.leader(), 0);

  // It is cut off from the store: it knows by itself, and only then another leads.
  *first->cut = true;
  ASSERT_TRUE(comes_true([&] { return second.leads() || third.leads(); }));
  EXPECT_FALSE(first->leads());
  Candidate& next = second.leads() ? second : third;
  EXPECT_EQ(next.leadership.view().job->generation, 2);
  EXPECT_EQ(next.leadership.view().job->ranks, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(next.leadership.view().job->job, first->leadership.view().job->job);

  // Most members are gone: nobody leads.
  etcd.signal(1, SIGSTOP);
  ASSERT_TRUE(comes_true([&] { return !second.leads() && !third.leads(); }));
  etcd.signal(1, SIGCONT);
  second.leadership.seek_on();
  third.leadership.seek_on();
  ASSERT_TRUE(comes_true([&] { return second.leads() || third.leads(); }));
  other = nullptr;
  done = true;
  watch.join();
  EXPECT_EQ(at_once, 0);
}

TEST_F(LeadershipTest, OutlivesTheLeaderOfTheStore) {
  const EtcdMembers etcd(3);
  Candidate only(etcd, 0);
  ASSERT_TRUE(comes_true([&] { return only.leads(); }));
  for (int member = 0; member < 3; ++member) {  // one of them is etcd's leader
    etcd.signal(member, SIGSTOP);
    const auto stopped = LeaseClock::now();
    ASSERT_TRUE(comes_true([&] { return LeaseClock::now() > stopped + Milliseconds(2500); }));
    EXPECT_TRUE(only.leads()) << "member " << member << ": " << only.leadership.view().trouble;
    etcd.signal(member, SIGCONT);
  }
}

TEST_F(LeadershipTest, LeavesNothingBehind) {
  const EtcdMembers etcd(1);
  EtcdClient client = client_of(etcd);
  {
    Candidate first(etcd, 0);
    Candidate second(etcd, 1);
    ASSERT_TRUE(comes_true([&] { return first.leads() || second.leads(); }));
    EXPECT_NE(client.read({"/trireme/job/job"})[0].changed, 0);
  }
  const auto left = client.read({"/trireme/job/job", "/trireme/job/leader"});
  EXPECT_EQ(left[0].changed, 0) << left[0].value;
  EXPECT_EQ(left[1].changed, 0) << left[1].value;
}

TEST_F(LeadershipTest, RefusesOtherJobs) {
  const EtcdMembers etcd(1);
  EtcdClient client = client_of(etcd);
  auto leader = std::make_unique<Candidate>(etcd, 0);
  ASSERT_TRUE(comes_true([&] { return leader->leads(); }));
  const auto refusal_of = [&](const JobRecord& alike) {
    const Candidate candidate(etcd, 1, alike);
    comes_true([&] { return !candidate.leadership.view().refusal.empty(); });
    return candidate.leadership.view().refusal;
  };
  const std::string settings = refusal_of(some_settings("7"));
  EXPECT_NE(settings.find("it has --heartbeat 1, and this launcher 7"), std::string::npos)
      << settings;
  JobRecord other = some_settings();
  other.version = "0.0.1";
  const std::string version = refusal_of(other);
  EXPECT_NE(version.find("and this is 0.0.1: install the same version"), std::string::npos)
      << version;

  // One that was in the job finds it ended, and begins no new one.
  const std::string job = leader->leadership.view().job->job;
  leader.reset();
  Candidate late(etcd, 1);
  late.leadership.seek({1, "host", "127.0.0.1:101", ""}, job);
  ASSERT_TRUE(comes_true([&] { return !late.leadership.view().refusal.empty(); }));
  EXPECT_NE(late.leadership.view().refusal.find(job + " has ended"), std::string::npos);
  EXPECT_FALSE(late.leads());

  // What is there is no record of ours.
  client.write({}, {{"/trireme/other/job", "a shopping list", 0}});
  StoreOptions store;
  store.place = etcd.store() + "/other";
  const std::string strange = lasting_trouble(store);
  EXPECT_NE(strange.find("\"a shopping list\""), std::string::npos) << strange;
}

// As an administrator does it; no other client is installed.
std::string post(const EtcdMembers& etcd, const std::string& path, const std::string& body) {
  return load_http_client({})
      ->post("http://" + etcd.places()[0] + "/v3/" + path, body, {}, Milliseconds(5000))
      .body;
}

TEST_F(LeadershipTest, NamesWhatTheStoreWants) {
  const EtcdMembers etcd(1);
  StoreOptions store;
  store.place = etcd.store();
  const auto expect = [&](const std::string& part) {
    const std::string trouble = lasting_trouble(store);
    EXPECT_NE(trouble.find(part), std::string::npos) << trouble;
  };
  ASSERT_TRUE(comes_true([&] {
    return post(etcd,
                "maintenance/alarm",
                R"({"action":"ACTIVATE","memberID":"1","alarm":"NOSPACE"})")
               .find("NOSPACE") != std::string::npos;
  }));
  expect("(the alarm NOSPACE): compact");
  post(etcd, "maintenance/alarm", R"({"action":"DEACTIVATE","memberID":"1","alarm":"NOSPACE"})");

  post(etcd, "auth/user/add", R"({"name":"root","password":"right"})");
  post(etcd, "auth/user/grant", R"({"user":"root","role":"root"})");
  post(etcd, "auth/enable", "{}");
  expect("it wants a password: give --store-user");
  const testing::TemporaryFolder folder;
  store.user = "root";
  store.password_file = folder.path() + "/password";
  std::ofstream(store.password_file) << "wrong\n";
  EXPECT_THROW(parse_store(store), ConfigError);  // others may read it
  run_program({"chmod", "600", store.password_file});
  expect("check --store-user, and its password");
  std::ofstream(store.password_file) << "right\n";
  LaunchOptions options;
  options.store = store;
  EXPECT_FALSE(has_begun(options));  // and no trouble
}

TEST_F(LeadershipTest, SpeaksTls) {
  const testing::TemporaryFolder folder;
  const std::string key = folder.path() + "/key.pem";
  const std::string certificate = folder.path() + "/certificate.pem";
  const auto made = run_program({"openssl",
                                 "req",
                                 "-x509",
                                 "-newkey",
                                 "ec",
                                 "-pkeyopt",
                                 "ec_paramgen_curve:P-256",
                                 "-nodes",
                                 "-subj",
                                 "/CN=etcd",
                                 "-addext",
                                 "subjectAltName=IP:127.0.0.1",
                                 "-keyout",
                                 key,
                                 "-out",
                                 certificate});
  ASSERT_EQ(made.code, 0) << made.err;
  const EtcdMembers etcd(1,
                         {"--cert-file",
                          certificate,
                          "--key-file",
                          key,
                          "--trusted-ca-file",
                          certificate,
                          "--client-cert-auth"},
                         "https");
  LaunchOptions options;
  options.store.place = etcd.store();
  options.timeout_seconds = 2;
  const auto trouble = [&]() -> std::string {
    try {
      return has_begun(options) ? "it has begun" : "none";
    } catch (const Error& error) {
      return error.what();
    }
  };
  // Refused connections first, until it is there.
  EXPECT_TRUE(comes_true([&] { return trouble().find("wants TLS") != std::string::npos; }))
      << trouble();
  options.store.ca_file = "/etc/ssl/certs/ca-certificates.crt";  // of others
  EXPECT_NE(trouble().find("check --store-ca"), std::string::npos) << trouble();
  options.store.ca_file = certificate;
  EXPECT_NE(trouble().find("--store-cert"), std::string::npos) << trouble();
  options.store.cert_file = certificate;
  options.store.key_file = key;
  EXPECT_EQ(trouble(), "none");
}

TEST(StoreOptions, NameAStoreThatIsNotThere) {
  const auto finished = run_program({testing::trireme_binary(),
                                     "run",
                                     "--nnodes",
                                     "2",
                                     "--node-rank",
                                     "1",
                                     "--elastic",
                                     "1:2",
                                     "-n",
                                     "1",
                                     "--timeout",
                                     "1",
                                     "--store",
                                     "etcd://127.0.0.1:9",
                                     "--",
                                     "true"});
  EXPECT_EQ(finished.code, 4);
  EXPECT_NE(finished.err.find("etcd at 127.0.0.1:9 does not answer"), std::string::npos)
      << finished.err;
}

TEST(StoreOptions, RefuseWhatIsNoPlace) {
  for (const std::string place : {"etcd:/127.0.0.1:1",
                                  "http://127.0.0.1:2379",
                                  "etcd://",
                                  "etcd://127.0.0.1",
                                  "etcd://127.0.0.1:70000",
                                  "etcd://127.0.0.1:1/a/b",
                                  "etcd://127.0.0.1:1/"}) {
    StoreOptions options;
    options.place = place;
    EXPECT_THROW(parse_store(options), ConfigError) << place;
  }
  StoreOptions options;
  options.place = "etcd://a:1,[::1]:2/night-7";
  const StorePlace place = parse_store(options);
  EXPECT_EQ(place.etcd.members, (std::vector<std::string>{"a:1", "[::1]:2"}));
  EXPECT_EQ(place.name, "night-7");
  options.user = "root";
  EXPECT_THROW(parse_store(options), ConfigError);  // and no password
}

// More is left at each renewal than a machine's lease, and etcd can count it.
TEST(StoreOptions, LeadLongerThanALease) {
  for (const int heartbeat : {1, 500, 1000, 1500, 2000, 5000, 30000}) {
    const double all = static_cast<double>(lease_seconds(Milliseconds(heartbeat)) * 1000);
    EXPECT_GE(all, 2000);
    EXPECT_GT(all * 7 / 8 - all / 6, heartbeat) << heartbeat;
  }
}

}  // namespace
}  // namespace trireme::detail
