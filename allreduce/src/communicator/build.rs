//! Building a communicator: memory, handles, mappings.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::{Communicator, Options, Selector};
use crate::device::{
    Device, DeviceBuffer, IpcBuffer, IpcHandle, PinnedBuffer, SharedHostBuffer, Stream,
};
use crate::kernels::Kernels;
use crate::protocol::{self, MARK};
use crate::rendezvous::Rendezvous;
use crate::{Error, Result};

/// Inboxes of this process, so that ranks on other threads keep what they write to alive.
static INBOXES: Mutex<Option<HashMap<u64, DeviceBuffer>>> = Mutex::new(None);

fn with_inboxes<T>(work: impl FnOnce(&mut HashMap<u64, DeviceBuffer>) -> T) -> T {
    let mut inboxes = INBOXES
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    work(inboxes.get_or_insert_default())
}

/// A number for this process. Not its id: containers that share a socket may have equal ones.
fn process_token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}

/// What a rank tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Card {
    process: u64,
    gpu: u64,
    inbox: u64,
    handle: Option<IpcHandle>,
    settings: [u64; 5],
}

const CARD_BYTES: usize = 9 * 8 + 64;

impl Card {
    fn to_bytes(&self) -> Vec<u8> {
        let size = self.handle.map_or(0, |h| h.size);
        let mut bytes = Vec::with_capacity(CARD_BYTES);
        for word in [self.process, self.gpu, self.inbox, size]
            .iter()
            .chain(&self.settings)
        {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.handle.map_or([0; 64], |h| h.bytes));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Card> {
        let bytes: &[u8; CARD_BYTES] = bytes
            .try_into()
            .map_err(|_| Error::Bootstrap("a rank of another version".into()))?;
        let (words, handle) = bytes.split_at(9 * 8);
        let mut numbers = [0; 9];
        for (number, word) in numbers.iter_mut().zip(words.chunks_exact(8)) {
            *number = word.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        }
        let [process, gpu, inbox, size, s0, s1, s2, s3, s4] = numbers;
        let mut raw = [0; 64];
        raw.copy_from_slice(handle);
        let handle = (size > 0).then_some(IpcHandle { bytes: raw, size });
        Ok(Card {
            process,
            gpu,
            inbox,
            handle,
            settings: [s0, s1, s2, s3, s4],
        })
    }
}

impl Communicator {
    /// Joins the group on `device`. All ranks must call it with equal options.
    ///
    /// Where some pair of GPUs cannot reach each other, all ranks do without peers.
    ///
    /// # Errors
    /// A rank does not come, options differ, out of memory, or the driver's own error.
    pub fn new(
        device: &Device,
        rendezvous: Box<dyn Rendezvous>,
        options: Options,
    ) -> Result<Communicator> {
        let (rank, ranks) = (rendezvous.rank(), rendezvous.ranks());
        if !(2..=protocol::MAX_RANKS).contains(&ranks) || rank >= ranks {
            return Err(Error::Invalid(format!(
                "rank {rank} of {ranks}: 2 to 16 ranks"
            )));
        }
        options.memory.check(ranks)?;
        let stream = Stream::new(device)?;
        let mut this = Communicator {
            rank,
            ranks,
            kernels: Kernels::new(device, ranks),
            state: initial_state(&stream, options.first_call)?,
            control: PinnedBuffer::new(device, 4096)?,
            arena: Vec::new(),
            host: None,
            nccl: None,
            selector: Selector::unmeasured(ranks, options.peers),
            stream,
            options,
            _mapped: Vec::new(),
            _arenas: Vec::new(),
            rendezvous,
        };
        this.map_peers()?;
        if this.options.host {
            this.map_host()?;
        }
        this.selector = Selector::unmeasured(ranks, !this.arena.is_empty());
        this.agree(true, "ready")?;
        Ok(this)
    }

    /// Whether all ranks say yes.
    fn agree(&mut self, yes: bool, what: &str) -> Result<bool> {
        let all = self.rendezvous.exchange(&[u8::from(yes)])?;
        if all.iter().any(|answer| answer.len() != 1) {
            return Err(Error::Bootstrap(format!(
                "ranks are out of step at '{what}'"
            )));
        }
        Ok(all.iter().all(|answer| answer[0] == 1))
    }

    fn map_peers(&mut self) -> Result<()> {
        let memory = self.options.memory;
        let bytes = if self.options.peers {
            protocol::inbox_bytes(memory.slot_bytes)
        } else {
            16
        };
        let inbox = DeviceBuffer::new(self.device(), bytes as usize)?;
        inbox.fill(&self.stream, MARK as u8)?;
        self.stream.synchronize()?;
        with_inboxes(|inboxes| inboxes.insert(inbox.address(), inbox.clone()));
        let card = Card {
            process: process_token(),
            gpu: self.device().ordinal() as u64,
            inbox: inbox.address(),
            handle: inbox.ipc_handle().ok(),
            settings: [
                memory.slot_bytes,
                memory.host_slot_bytes,
                memory.host_bulk_bytes,
                u64::from(self.options.first_call),
                u64::from(self.options.peers) << 1 | u64::from(self.options.host),
            ],
        };
        let cards = self.rendezvous.exchange(&card.to_bytes())?;
        let mapped = cards
            .iter()
            .map(|bytes| Card::from_bytes(bytes))
            .collect::<Result<Vec<Card>>>()
            .and_then(|cards| self.open_inboxes(&card, &cards));
        self._arenas.push(inbox.clone());
        let usable = matches!(&mapped, Ok(Some(_)));
        let all_usable = self.agree(usable || mapped.is_err(), "peers")?;
        with_inboxes(|inboxes| inboxes.remove(&inbox.address()));
        match mapped? {
            Some(arena) if all_usable => self.arena = arena,
            _ => self._mapped.clear(),
        }
        Ok(())
    }

    /// Every rank's inbox as this GPU addresses it; `None` where one cannot be reached.
    fn open_inboxes(&mut self, mine: &Card, cards: &[Card]) -> Result<Option<Vec<u64>>> {
        if let Some(other) = cards.iter().position(|c| c.settings != mine.settings) {
            return Err(Error::Bootstrap(format!("rank {other} has other options")));
        }
        if !self.options.peers {
            return Ok(None);
        }
        let mut arena = Vec::new();
        for (rank, card) in cards.iter().enumerate() {
            if rank == self.rank {
                arena.push(mine.inbox);
            } else if card.process == mine.process {
                let Some(buffer) = with_inboxes(|inboxes| inboxes.get(&card.inbox).cloned()) else {
                    return Err(Error::Bootstrap(format!("rank {rank} is gone")));
                };
                if !self.device().can_access(buffer.device())? {
                    return Ok(None);
                }
                self.device().enable_access(buffer.device())?;
                arena.push(card.inbox);
                self._arenas.push(buffer);
            } else {
                let Some(handle) = &card.handle else {
                    return Ok(None);
                };
                let Ok(buffer) = IpcBuffer::open(self.device(), handle) else {
                    return Ok(None);
                };
                arena.push(buffer.address());
                self._mapped.push(buffer);
            }
        }
        Ok(Some(arena))
    }

    /// One file of shared memory, made by rank 0 and unlinked once all have mapped it.
    ///
    /// Each rank writes its own region before anyone maps the file: so its pages are near its GPU,
    /// and a full file system is an error of `write` where touching a mapped page would be a
    /// signal that ends the process.
    fn map_host(&mut self) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let memory = self.options.memory;
        let region = protocol::host_region_bytes(memory.host_slot_bytes, memory.host_bulk_bytes);
        let bytes = usize::try_from(region.saturating_mul(self.ranks as u64))
            .map_err(|_| Error::Invalid("host memory beyond the address space".into()))?;
        let mut file = Err(Error::Bootstrap("rank 0 has no shared memory".into()));
        let mut path = PathBuf::new();
        if self.rank == 0 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            path = shared_folder().join(format!("allreduce-{}-{count}", std::process::id()));
            file = create_shared(&path, bytes);
        }
        let names = self
            .rendezvous
            .exchange(path.display().to_string().as_bytes())?;
        if self.rank != 0 {
            path = PathBuf::from(String::from_utf8_lossy(&names[0]).into_owned());
            file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| Error::io(format!("opening {}", path.display()), &e));
        }
        let from = region * self.rank as u64;
        let file = file.and_then(|file| write_marks(&file, &path, from, region).map(|()| file));
        let mapped = self
            .all_or_none(file)
            .and_then(|file| SharedHostBuffer::map(self.device(), &file, bytes));
        let mapped = self.all_or_none(mapped);
        if self.rank == 0 {
            let _ = std::fs::remove_file(&path);
        }
        self.host = Some(mapped?);
        Ok(())
    }

    /// This rank's result where all ranks have one; else an error, the same rank's everywhere.
    fn all_or_none<T>(&mut self, own: Result<T>) -> Result<T> {
        let why = own
            .as_ref()
            .err()
            .map_or(String::new(), ToString::to_string);
        let all = self.rendezvous.exchange(why.as_bytes())?;
        let own = own?;
        match all.iter().position(|why| !why.is_empty()) {
            Some(rank) => Err(Error::Bootstrap(format!(
                "rank {rank}: {}",
                String::from_utf8_lossy(&all[rank])
            ))),
            None => Ok(own),
        }
    }
}

fn shared_folder() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() {
        shm
    } else {
        std::env::temp_dir()
    }
}

fn create_shared(path: &Path, bytes: usize) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| Error::io(format!("creating {}", path.display()), &e))?;
    file.set_len(bytes as u64)
        .map_err(|e| Error::io(format!("growing {}", path.display()), &e))?;
    Ok(file)
}

/// Fills `bytes` of the file from byte `from` with the mark.
fn write_marks(file: &File, path: &Path, from: u64, bytes: u64) -> Result<()> {
    let chunk = vec![MARK as u8; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let now = (bytes - at).min(chunk.len() as u64);
        file.write_all_at(&chunk[..now as usize], from + at)
            .map_err(|e| {
                let what = format!(
                    "writing {bytes} bytes of {} (a larger one, such as docker --shm-size, smaller \
                     Options::memory, or Options::host off)",
                    path.display()
                );
                Error::io(what, &e)
            })?;
        at += now;
    }
    Ok(())
}

/// The poison word, and a record for every block that says which call comes next.
fn initial_state(stream: &Stream, first_call: u32) -> Result<DeviceBuffer> {
    let mut words = vec![0u32; (protocol::STATE_BYTES / 4) as usize];
    let records = (protocol::RECORDS_AT / 4) as usize;
    for record in words[records..].chunks_exact_mut((protocol::RECORD_BYTES / 4) as usize) {
        record[0] = first_call % protocol::CALL_MODULUS;
    }
    DeviceBuffer::from_slice(stream, &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full `/dev/shm` ended the process with a signal when the first page was touched.
    #[test]
    fn a_full_file_system_is_an_error_that_says_how_to_mend_it() {
        let path = Path::new("/dev/full");
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let error = write_marks(&file, path, 0, 3 << 20).unwrap_err();
        assert!(error.to_string().contains("--shm-size"), "{error}");
    }

    #[test]
    fn a_card_survives_its_bytes() {
        let card = Card {
            process: 7,
            gpu: 1,
            inbox: 0x7f00_1234_5678,
            handle: Some(IpcHandle {
                bytes: [9; 64],
                size: 1 << 30,
            }),
            settings: [1, 2, 3, 4, 5],
        };
        assert_eq!(Card::from_bytes(&card.to_bytes()).unwrap(), card);
        assert!(Card::from_bytes(&[0; 5]).is_err());
    }
}
