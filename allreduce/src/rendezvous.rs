//! How ranks find each other and exchange handles: threads of one process, or processes through a
//! Unix socket.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Exchanges bytes between the ranks of one communicator.
pub trait Rendezvous: Send {
    /// This rank.
    fn rank(&self) -> usize;
    /// How many ranks there are.
    fn ranks(&self) -> usize;
    /// Gives every rank's bytes to every rank, in rank order. All ranks must call it.
    ///
    /// # Errors
    /// A rank is missing when the deadline passes, or its process ended.
    fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
}

/// Ranks that are threads of one process.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    round: u64,
    deadline: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ranks: usize,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug)]
struct Table {
    rounds: HashMap<u64, Round>,
    /// Ranks whose end was dropped: nobody waits for them.
    gone: Vec<bool>,
}

#[derive(Debug)]
struct Round {
    given: Vec<Option<Vec<u8>>>,
    taken: usize,
}

impl Threads {
    /// One end for each of `ranks` ranks; each exchange waits at most `deadline`.
    pub fn group(ranks: usize, deadline: Duration) -> Vec<Threads> {
        let shared = Arc::new(Shared {
            ranks,
            table: Mutex::new(Table {
                rounds: HashMap::new(),
                gone: vec![false; ranks],
            }),
            changed: Condvar::new(),
        });
        (0..ranks)
            .map(|rank| Threads {
                rank,
                round: 0,
                deadline,
                shared: shared.clone(),
            })
            .collect()
    }
}

impl Rendezvous for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.ranks
    }

    fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let ranks = self.shared.ranks;
        let until = Instant::now() + self.deadline;
        let poison = std::sync::PoisonError::into_inner;
        let mut table = self.shared.table.lock().unwrap_or_else(poison);
        let fresh = || Round {
            given: vec![None; ranks],
            taken: 0,
        };
        let round = table.rounds.entry(self.round).or_insert_with(fresh);
        round.given[self.rank] = Some(bytes.to_vec());
        self.shared.changed.notify_all();
        loop {
            let Table { rounds, gone } = &mut *table;
            let round = rounds.entry(self.round).or_insert_with(fresh);
            let all: Option<Vec<Vec<u8>>> = round.given.iter().cloned().collect();
            if let Some(all) = all {
                round.taken += 1;
                if round.taken == ranks {
                    rounds.remove(&self.round);
                }
                self.round += 1;
                return Ok(all);
            }
            let missing = |r: &usize| round.given[*r].is_none();
            let dropped: Vec<usize> = (0..ranks).filter(missing).filter(|r| gone[*r]).collect();
            if !dropped.is_empty() {
                return Err(Error::Bootstrap(format!("ranks {dropped:?} are gone")));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<usize> = (0..ranks).filter(missing).collect();
                return Err(Error::Bootstrap(format!("ranks {missing:?} did not come")));
            }
            table = match self.shared.changed.wait_timeout(table, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let poison = std::sync::PoisonError::into_inner;
        self.shared.table.lock().unwrap_or_else(poison).gone[self.rank] = true;
        self.shared.changed.notify_all();
    }
}

/// Ranks that are processes of one machine; rank 0 listens on a Unix socket.
#[derive(Debug)]
pub struct Processes {
    rank: usize,
    ranks: usize,
    /// Rank 0: one stream to each other rank, in rank order. Others: one stream to rank 0.
    streams: Vec<UnixStream>,
}

impl Processes {
    /// Connects this rank; waits at most `deadline` for the others, then and in each exchange.
    ///
    /// # Errors
    /// The socket cannot be made, or a rank does not come in time.
    pub fn connect(
        socket: &Path,
        rank: usize,
        ranks: usize,
        deadline: Duration,
    ) -> Result<Processes> {
        if rank >= ranks {
            return Err(Error::Invalid(format!("rank {rank} of {ranks}")));
        }
        let until = Instant::now() + deadline;
        let streams = if rank == 0 {
            accept(socket, ranks, until)?
        } else {
            let mut stream = dial(socket, until)?;
            stream
                .write_all(&(rank as u32).to_le_bytes())
                .map_err(|e| Error::io("greeting rank 0", &e))?;
            vec![stream]
        };
        for stream in &streams {
            stream
                .set_read_timeout(Some(deadline))
                .map_err(|e| Error::io("socket deadline", &e))?;
            stream
                .set_write_timeout(Some(deadline))
                .map_err(|e| Error::io("socket deadline", &e))?;
        }
        Ok(Processes {
            rank,
            ranks,
            streams,
        })
    }

    /// Connects by the environment that mpirun, torchrun or srun set: see [`Launched::detect`].
    ///
    /// # Errors
    /// No such environment, or as [`Processes::connect`].
    pub fn from_environment(deadline: Duration) -> Result<(Launched, Processes)> {
        let launched = Launched::detect()?;
        let ends = Processes::connect(&launched.socket, launched.rank, launched.ranks, deadline)?;
        Ok((launched, ends))
    }
}

fn accept(socket: &Path, ranks: usize, until: Instant) -> Result<Vec<UnixStream>> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)
        .map_err(|e| Error::io(format!("listening on {}", socket.display()), &e))?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::io("socket mode", &e))?;
    let mut streams: Vec<Option<UnixStream>> = (1..ranks).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let prepared = stream
                    .set_nonblocking(false)
                    .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))));
                prepared.map_err(|e| Error::io("socket mode", &e))?;
                let mut greeting = [0; 4];
                if stream.read_exact(&mut greeting).is_err() {
                    continue;
                }
                let rank = u32::from_le_bytes(greeting) as usize;
                match streams.get_mut(rank.wrapping_sub(1)) {
                    Some(place) if place.is_none() => *place = Some(stream),
                    _ => return Err(Error::Bootstrap(format!("a second rank {rank} of {ranks}"))),
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                if Instant::now() > until {
                    let missing: Vec<usize> =
                        (1..ranks).filter(|r| streams[r - 1].is_none()).collect();
                    return Err(Error::Bootstrap(format!("ranks {missing:?} did not come")));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(Error::io("accepting a rank", &e)),
        }
    }
    let _ = std::fs::remove_file(socket);
    Ok(streams.into_iter().flatten().collect())
}

fn dial(socket: &Path, until: Instant) -> Result<UnixStream> {
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > until => {
                return Err(Error::io(
                    format!("connecting to rank 0 at {}", socket.display()),
                    &e,
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

const LARGEST_MESSAGE: u32 = 64 << 20;

fn send(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    let length = (bytes.len() as u32).to_le_bytes();
    let sent = stream
        .write_all(&length)
        .and_then(|()| stream.write_all(bytes));
    sent.map_err(|e| Error::Bootstrap(format!("a peer is gone: {e}")))
}

fn receive(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let gone = |e: std::io::Error| Error::Bootstrap(format!("a peer is gone or late: {e}"));
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(gone)?;
    let length = u32::from_le_bytes(length);
    if length > LARGEST_MESSAGE {
        return Err(Error::Bootstrap(format!(
            "a peer sent {length} bytes at once"
        )));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).map_err(gone)?;
    Ok(bytes)
}

impl Rendezvous for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.rank != 0 {
            send(&mut self.streams[0], bytes)?;
            return (0..self.ranks)
                .map(|_| receive(&mut self.streams[0]))
                .collect();
        }
        let mut all = vec![bytes.to_vec()];
        for stream in &mut self.streams {
            all.push(receive(stream)?);
        }
        for stream in &mut self.streams {
            for bytes in &all {
                send(stream, bytes)?;
            }
        }
        Ok(all)
    }
}

/// What a launcher told this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// This process's rank.
    pub rank: usize,
    /// How many processes there are.
    pub ranks: usize,
    /// This process's number on this machine: which GPU to take.
    pub local_rank: usize,
    /// Where rank 0 listens.
    pub socket: PathBuf,
}

impl Launched {
    /// Reads the environment of torchrun, mpirun (Open MPI, MPICH) or srun, or `ALLREDUCE_RANK`
    /// and `ALLREDUCE_RANKS`. The socket is `$ALLREDUCE_SOCKET`, or named after the job's number.
    ///
    /// # Errors
    /// None of these launchers started this process.
    pub fn detect() -> Result<Launched> {
        Launched::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Launched> {
        const LAUNCHERS: [[&str; 4]; 5] = [
            [
                "ALLREDUCE_RANK",
                "ALLREDUCE_RANKS",
                "ALLREDUCE_LOCAL_RANK",
                "ALLREDUCE_JOB",
            ],
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"],
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "PMIX_NAMESPACE",
            ],
            ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID"],
            [
                "SLURM_PROCID",
                "SLURM_NTASKS",
                "SLURM_LOCALID",
                "SLURM_JOB_ID",
            ],
        ];
        let number = |name: &str| lookup(name).and_then(|v| v.trim().parse::<usize>().ok());
        for [rank, ranks, local, job] in LAUNCHERS {
            let (Some(rank), Some(ranks)) = (number(rank), number(ranks)) else {
                continue;
            };
            let job: String = lookup(job)
                .or_else(|| lookup("MASTER_PORT"))
                .unwrap_or_else(|| "job".into())
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .take(60)
                .collect();
            let socket = lookup("ALLREDUCE_SOCKET").map_or_else(
                || std::env::temp_dir().join(format!("allreduce-{job}.sock")),
                PathBuf::from,
            );
            return Ok(Launched {
                rank,
                ranks,
                local_rank: number(local).unwrap_or(rank),
                socket,
            });
        }
        Err(Error::Bootstrap(
            "start this with torchrun, mpirun or srun, or set ALLREDUCE_RANK and ALLREDUCE_RANKS"
                .into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange_twice(mut ends: impl Rendezvous) -> Vec<Vec<u8>> {
        let rank = ends.rank() as u8;
        ends.exchange(&[rank; 3]).unwrap();
        ends.exchange(&vec![rank; rank as usize]).unwrap()
    }

    #[test]
    fn threads_and_processes_exchange_in_rank_order() {
        let expected: Vec<Vec<u8>> = (0..3u8).map(|r| vec![r; r as usize]).collect();
        let ends = Threads::group(3, Duration::from_secs(20));
        let socket =
            std::env::temp_dir().join(format!("allreduce-test-{}.sock", std::process::id()));
        std::thread::scope(|scope| {
            for end in ends {
                let expected = &expected;
                scope.spawn(move || assert_eq!(&exchange_twice(end), expected));
            }
            for rank in 0..3 {
                let (expected, socket) = (&expected, &socket);
                scope.spawn(move || {
                    let end = Processes::connect(socket, rank, 3, Duration::from_secs(20)).unwrap();
                    assert_eq!(&exchange_twice(end), expected);
                });
            }
        });
    }

    #[test]
    fn a_missing_rank_is_named_when_the_deadline_passes() {
        let mut ends = Threads::group(2, Duration::from_millis(30));
        let error = ends[0].exchange(b"x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "ranks could not connect: ranks [1] did not come"
        );
    }

    #[test]
    fn a_rank_that_is_gone_is_not_waited_for() {
        let mut ends = Threads::group(2, Duration::from_secs(60));
        drop(ends.pop());
        let error = ends[0].exchange(b"x").unwrap_err().to_string();
        assert_eq!(error, "ranks could not connect: ranks [1] are gone");
    }

    #[test]
    fn launchers_are_read_from_their_environment() {
        let slurm = |name: &str| match name {
            "SLURM_PROCID" => Some("3".to_string()),
            "SLURM_NTASKS" => Some("4".to_string()),
            "SLURM_LOCALID" => Some("1".to_string()),
            "SLURM_JOB_ID" => Some("77".to_string()),
            _ => None,
        };
        let launched = Launched::from_lookup(slurm).unwrap();
        assert_eq!(
            (launched.rank, launched.ranks, launched.local_rank),
            (3, 4, 1)
        );
        assert!(launched.socket.ends_with("allreduce-77.sock"));
        assert!(Launched::from_lookup(|_| None).is_err());
    }
}
