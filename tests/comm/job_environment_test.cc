#include "comm/api/job_environment.h"

#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/foreign_locale.h"
#include "support/ranks.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::JobEnvironment;
using detail::read_job_environment;

// Sets variables for one test and takes them away again.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<const char*, const char*>> values) : values_(values) {
    for (const auto& [name, value] : values_) {
      setenv(name, value, 1);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : values_) {
      unsetenv(name);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::pair<const char*, const char*>> values_;
};

void expect_place(const JobEnvironment& job, const std::string& launcher, int rank, int size) {
  EXPECT_EQ(job.launcher, launcher);
  EXPECT_EQ(job.rank, rank);
  EXPECT_EQ(job.size, size);
}

TEST(JobEnvironment, WithoutALauncherIsAWorldOfOne) {
  expect_place(read_job_environment(), "none", 0, 1);
}

TEST(JobEnvironment, ReadsTriremesOwnVariablesFirst) {
  const Variables variables{
      {"TRIREME_RANK", "2"}, {"TRIREME_WORLD_SIZE", "4"}, {"RANK", "0"}, {"WORLD_SIZE", "9"}};
  expect_place(read_job_environment(), "trireme run", 2, 4);
}

TEST(JobEnvironment, ReadsTorchrun) {
  const Variables variables{{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"}};
  const JobEnvironment job = read_job_environment();
  expect_place(job, "torchrun", 1, 2);
  EXPECT_NE(job.job.find("29500"), std::string::npos);
}

// A job that is started again keeps its name: what is left over of it is then known by the attempt.
TEST(JobEnvironment, CountsTheAttemptsOfOneTorchrun) {
  const Variables variables{{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"}};
  const JobEnvironment first = read_job_environment();
  EXPECT_EQ(first.epoch, 0);
  const Variables again{{"TORCHELASTIC_RESTART_COUNT", "2"}};
  EXPECT_EQ(read_job_environment().epoch, 2);
  EXPECT_EQ(read_job_environment().job, first.job);
  const Variables said{{"TRIREME_EPOCH", "5"}};
  EXPECT_EQ(read_job_environment().epoch, 5);
}

// On several machines each agent counts only the failures of its own ranks.
TEST(JobEnvironment, DoesNotTakeOneAgentsCountForTheJobs) {
  const Variables variables{{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "0"},
                            {"LOCAL_WORLD_SIZE", "1"},
                            {"MASTER_ADDR", "node-a"},
                            {"MASTER_PORT", "29500"}};
  const JobEnvironment first = read_job_environment();
  const Variables again{{"TORCHELASTIC_RESTART_COUNT", "2"}};
  EXPECT_EQ(read_job_environment().epoch, 0);
  EXPECT_EQ(read_job_environment().job, first.job);
}

TEST(JobEnvironment, CountsTheAttemptsOfASlurmJob) {
  const Variables variables{{"SLURM_PROCID", "0"},
                            {"SLURM_NTASKS", "2"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_JOB_ID", "17"},
                            {"SLURM_STEP_ID", "0"}};
  const JobEnvironment first = read_job_environment();
  EXPECT_EQ(first.epoch, 0);
  const Variables again{{"SLURM_RESTART_COUNT", "1"}};
  EXPECT_EQ(read_job_environment().epoch, 1);
  EXPECT_EQ(read_job_environment().job, first.job);
  const Variables wrong{{"SLURM_RESTART_COUNT", "twice"}};
  EXPECT_THROW(read_job_environment(), ConfigError);
}

TEST(JobEnvironment, ReadsOpenMpi) {
  const Variables variables{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "5"}};
  expect_place(read_job_environment(), "mpirun (Open MPI)", 3, 5);
}

TEST(JobEnvironment, ReadsMpich) {
  const Variables variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  expect_place(read_job_environment(), "mpiexec (MPICH)", 0, 2);
}

TEST(JobEnvironment, NamesAnMpichJobAlikeOnEveryMachine) {
  const Variables variables{{"PMI_RANK", "3"},
                            {"PMI_SIZE", "4"},
                            {"MPI_LOCALRANKID", "1"},
                            {"MPI_LOCALNRANKS", "2"},
                            {"PMI_PORT", "node-b:34567"}};
  // The parent of this test is no proxy: the name is good for the children of one parent only.
  const JobEnvironment alone = read_job_environment();
  EXPECT_TRUE(alone.job_is_local);
  EXPECT_NE(alone.job.find(std::to_string(getppid())), std::string::npos) << alone.job;
  {
    const Variables named{{"PMI_JOBID", "4711.server"}};
    const JobEnvironment job = read_job_environment();
    EXPECT_FALSE(job.job_is_local);
    EXPECT_NE(job.job.find("4711.server"), std::string::npos) << job.job;
    for (const std::string& local : {std::to_string(getppid()), std::string("node-b")}) {
      EXPECT_EQ(job.job.find(local), std::string::npos) << job.job << " has " << local;
    }
  }
  const Variables said{{"TRIREME_JOB", "mine"}};
  EXPECT_EQ(read_job_environment().job, "mine");
  EXPECT_FALSE(read_job_environment().job_is_local);
}

TEST(JobEnvironment, KnowsAnMpichJobByItsProxies) {
  const auto line = [](const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) {
      text += word + '\0';
    }
    return text;
  };
  const auto proxy =
      [&](const std::string& place, const std::string& group, const std::string& id) {
        return detail::hydra_control_place(line({"/usr/bin/hydra_pmi_proxy",
                                                 "--control-port",
                                                 place,
                                                 "--rmk",
                                                 "user",
                                                 "--pgid",
                                                 group,
                                                 "--proxy-id",
                                                 id}));
      };
  EXPECT_NE(proxy("node-a:39513", "0", "0").find("node-a:39513"), std::string::npos);
  EXPECT_EQ(proxy("node-a:39513", "0", "0"), proxy("node-a:39513", "0", "1"));
  EXPECT_NE(proxy("node-a:39513", "0", "0"), proxy("node-a:39514", "0", "0"));
  EXPECT_NE(proxy("node-a:39513", "0", "0"), proxy("node-a:39513", "1", "0"));
  EXPECT_EQ(detail::hydra_control_place(""), "");
  EXPECT_EQ(detail::hydra_control_place(line({"/usr/bin/hydra_pmi_proxy"})), "");
  EXPECT_EQ(detail::hydra_control_place(line({"hydra_pmi_proxy", "--control-port"})), "");
  EXPECT_EQ(detail::hydra_control_place(line({"/bin/sh", "--control-port", "node-a:1"})), "");
}

// Ranks with different names for their job would refuse each other, each for no reason it can see.
TEST(JobEnvironment, AsksForTheNameOfAJobOnSeveralMachines) {
  const Variables variables{{"PMI_RANK", "0"},
                            {"PMI_SIZE", "4"},
                            {"MPI_LOCALRANKID", "0"},
                            {"MPI_LOCALNRANKS", "2"},
                            {"TRIREME_RENDEZVOUS", "127.0.0.1:1"},
                            {"TRIREME_TIMEOUT", "1"}};
  const std::string message = testing::message_of<ConfigError>([] { init(); });
  for (const char* part : {"mpiexec (MPICH)", "PMI_JOBID", "-genv TRIREME_JOB"}) {
    EXPECT_NE(message.find(part), std::string::npos) << "no " << part << " in: " << message;
  }
}

TEST(JobEnvironment, ReadsSrunButNotTheShellOfABatchJob) {
  Variables variables{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "77"}};
  expect_place(read_job_environment(), "none", 0, 1);
  const Variables batch{{"SLURM_STEP_ID", "4294967291"}};
  expect_place(read_job_environment(), "none", 0, 1);
  const Variables step{{"SLURM_STEP_ID", "0"}};
  expect_place(read_job_environment(), "srun", 1, 2);
}

TEST(JobEnvironment, RefusesWhatMakesNoSense) {
  {
    const Variables variables{{"TRIREME_RANK", "0"}};
    EXPECT_NE(
        testing::message_of<ConfigError>([] { read_job_environment(); }).find("TRIREME_WORLD_SIZE"),
        std::string::npos);
  }
  {
    const Variables variables{{"TRIREME_RANK", "zero"}, {"TRIREME_WORLD_SIZE", "2"}};
    EXPECT_NE(testing::message_of<ConfigError>([] { read_job_environment(); }).find("\"zero\""),
              std::string::npos);
  }
  {
    const Variables variables{{"TRIREME_RANK", "2"}, {"TRIREME_WORLD_SIZE", "2"}};
    EXPECT_NE(
        testing::message_of<ConfigError>([] { read_job_environment(); }).find("outside the world"),
        std::string::npos);
  }
  {
    const Variables variables{{"TRIREME_TIMEOUT", "soon"}};
    EXPECT_NE(testing::message_of<ConfigError>([] { init(); }).find("TRIREME_TIMEOUT"),
              std::string::npos);
  }
  {
    const Variables variables{
        {"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}};
    const std::string message = testing::message_of<ConfigError>([] { init(); });
    EXPECT_NE(message.find("where the ranks of the torchrun job can meet"), std::string::npos);
    EXPECT_NE(message.find("TRIREME_RENDEZVOUS=HOST:PORT"), std::string::npos) << message;
  }
  {
    const Variables variables{{"TRIREME_BACKEND", "pigeon"}};
    EXPECT_EQ(testing::message_of<ConfigError>([] { init(); }),
              "TRIREME_BACKEND: expected auto, shm, ucx or mpi, found \"pigeon\"");
  }
}

// Ranks of several machines meet at a port that others reach, too: without a token they do not, and
// the message has the line that gives them one.
TEST(JobEnvironment, SaysHowToGiveATokenUnderEachLauncher) {
  unsetenv("TRIREME_TOKEN");
  constexpr char kMake[] = "export TRIREME_TOKEN=$(openssl rand -hex 16)";
  const auto expect_advice = [&](const std::string& launcher, const std::string& advice) {
    const std::string message = testing::message_of<ConfigError>([] { init(); });
    for (const std::string& part :
         {"of the " + launcher, std::string(kMake), advice, std::string("TRIREME_TOKEN=none")}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  };
  {
    const Variables variables{{"RANK", "2"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "node-a"},
                              {"MASTER_PORT", "29400"}};
    expect_advice("torchrun", "on every machine before torchrun");
  }
  {
    const Variables variables{{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"TRIREME_RENDEZVOUS", "node-a:29500"}};
    expect_advice("mpirun", "mpirun -x TRIREME_TOKEN");
    EXPECT_FALSE(foreign_rank()->one_machine);
  }
  {
    const Variables variables{{"SLURM_PROCID", "2"},
                              {"SLURM_NTASKS", "4"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", "1"},
                              {"SLURM_NNODES", "2"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                              {"SLURM_STEP_NODELIST", "node[03-04]"},
                              {"SLURM_JOB_ID", "4711"}};
    expect_advice("srun", "before srun");
  }
}

TEST(JobEnvironment, SaysWhereTheRanksOfOtherLaunchersCanMeet) {
  {
    const Variables variables{{"RANK", "5"},
                              {"WORLD_SIZE", "6"},
                              {"LOCAL_RANK", "2"},
                              {"LOCAL_WORLD_SIZE", "3"},
                              {"MASTER_ADDR", "node-a"},
                              {"MASTER_PORT", "29400"}};
    const JobEnvironment job = read_job_environment();
    EXPECT_EQ(job.rendezvous, "node-a:29401");  // torchrun has the port itself
    EXPECT_EQ(job.local_size, 3);
    const Variables given{{"TRIREME_RENDEZVOUS", "10.1.2.3:555"}};
    EXPECT_EQ(read_job_environment().rendezvous, "10.1.2.3:555");
  }
  const Variables variables{{"SLURM_PROCID", "6"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_NODEID", "3"},
                            {"SLURM_NNODES", "4"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_JOB_ID", "24001"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                            {"SLURM_STEP_NODELIST", "rack[07-09,12]-x,spare"}};
  const JobEnvironment job = read_job_environment();
  EXPECT_EQ(job.local_size, 1);
  EXPECT_EQ(job.rendezvous, "rack07-x:20001");
  const Variables wrong{{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}};
  EXPECT_NE(testing::message_of<ConfigError>([] { read_job_environment(); }).find("2(x3)"),
            std::string::npos);
}

TEST(FailureReport, IsReadTheSameInEveryLocale) {
  const testing::ForeignLocale foreign(' ');
  FailureReport report;
  ASSERT_TRUE(FailureReport::parse("1234 5678 1", &report));
  EXPECT_EQ(report.rank, 1234);
  EXPECT_EQ(report.blamed, 5678);
  EXPECT_TRUE(report.rendezvous_timed_out);
  EXPECT_EQ(report.to_line(), "1234 5678 1\n");
}

TEST(JobEnvironment, ReadsSlurmsLists) {
  EXPECT_EQ(detail::first_slurm_host("a"), "a");
  EXPECT_EQ(detail::first_slurm_host("a,b"), "a");
  EXPECT_EQ(detail::first_slurm_host("n[1-4]"), "n1");
  EXPECT_EQ(detail::first_slurm_host("n[003,7]"), "n003");
  EXPECT_EQ(detail::first_slurm_host(""), "");
  EXPECT_EQ(detail::slurm_tasks_of("4", 0), 4);
  EXPECT_EQ(detail::slurm_tasks_of("2(x3),1", 2), 2);
  EXPECT_EQ(detail::slurm_tasks_of("2(x3),1", 3), 1);
  EXPECT_EQ(detail::slurm_tasks_of("2(x3),1", 4), std::nullopt);
  EXPECT_EQ(detail::slurm_tasks_of("two", 0), std::nullopt);
  EXPECT_EQ(detail::slurm_tasks_of("2(x)", 0), std::nullopt);
}

}  // namespace
}  // namespace trireme
