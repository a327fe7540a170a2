//! Compiling kernels at run time, with a cache in memory and on disk.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::nvrtc::sys;

use crate::{Error, Result};

/// NVRTC's version, major and minor.
///
/// # Errors
/// [`Error::MissingLibrary`] where NVRTC is not installed.
pub fn compiler_info() -> Result<(u32, u32)> {
    static INFO: OnceLock<Result<(u32, u32)>> = OnceLock::new();
    INFO.get_or_init(|| {
        // SAFETY: opens the library by its well-known names and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::MissingLibrary {
                library: "libnvrtc.so",
                mend: "install CUDA's NVRTC (the Python package nvidia-cuda-nvrtc carries it) \
                       and put its folder on LD_LIBRARY_PATH",
            });
        }
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: both out-parameters are valid.
        let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        check(status, "nvrtcVersion")?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    })
    .clone()
}

/// Compiles CUDA C++ to machine code for `arch` (such as `sm_90`); needs no GPU.
///
/// `defines` become `-DNAME=VALUE`. Results are cached by a hash of source, defines, architecture
/// and compiler version, in memory and under `$ALLREDUCE_CACHE` or `$XDG_CACHE_HOME/allreduce`
/// or `~/.cache/allreduce`; a cache that cannot be written is ignored.
///
/// # Errors
/// No NVRTC, or [`Error::Compile`] with the compiler's log.
pub fn compile_cubin(
    name: &str,
    source: &str,
    arch: &str,
    defines: &[(&str, String)],
) -> Result<Arc<Vec<u8>>> {
    static MEMORY: Mutex<Option<HashMap<String, Arc<Vec<u8>>>>> = Mutex::new(None);
    let version = compiler_info()?;
    let key = cache_key(source, arch, defines, version);
    let memory = || {
        MEMORY
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    if let Some(found) = memory().get_or_insert_default().get(&key) {
        return Ok(found.clone());
    }
    let path = cache_folder().map(|folder| folder.join(format!("{key}.cubin")));
    let cached = path
        .as_ref()
        .and_then(|p| std::fs::read(p).ok())
        .filter(|c| is_elf(c));
    let cubin = match cached {
        Some(cubin) => cubin,
        None => {
            let cubin = compile(name, source, arch, defines)?;
            if let Some(path) = &path {
                store(path, &cubin);
            }
            cubin
        }
    };
    let cubin = Arc::new(cubin);
    memory().get_or_insert_default().insert(key, cubin.clone());
    Ok(cubin)
}

fn is_elf(bytes: &[u8]) -> bool {
    bytes.len() > 64 && bytes.starts_with(b"\x7fELF")
}

pub(crate) fn cache_folder() -> Option<PathBuf> {
    let given = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    given("ALLREDUCE_CACHE")
        .or_else(|| given("XDG_CACHE_HOME").map(|p| p.join("allreduce")))
        .or_else(|| given("HOME").map(|p| p.join(".cache/allreduce")))
}

/// Writes beside the target and renames, so that no reader sees half a file.
fn store(path: &std::path::Path, cubin: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&beside, cubin))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
}

fn cache_key(source: &str, arch: &str, defines: &[(&str, String)], version: (u32, u32)) -> String {
    // FNV-1a with two offsets: 128 bits, stable across Rust releases.
    let mut hashes = [0xcbf2_9ce4_8422_2325_u64, 0x6c62_272e_07bb_0142];
    let mut feed = |bytes: &[u8]| {
        for hash in &mut hashes {
            for byte in bytes.iter().chain(&[0xff]) {
                *hash = (*hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            *hash ^= hash.rotate_left(29);
        }
    };
    feed(source.as_bytes());
    feed(arch.as_bytes());
    feed(format!("{version:?}").as_bytes());
    for (name, value) in defines {
        feed(name.as_bytes());
        feed(value.as_bytes());
    }
    format!("{:016x}{:016x}", hashes[0], hashes[1])
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn compile(name: &str, source: &str, arch: &str, defines: &[(&str, String)]) -> Result<Vec<u8>> {
    let c = |text: &str| {
        CString::new(text).map_err(|_| Error::Invalid(format!("a nul byte in {name}")))
    };
    let (source, file) = (c(source)?, c(name)?);
    let mut options = vec![c(&format!("--gpu-architecture={arch}"))?, c("--std=c++17")?];
    for (define, value) in defines {
        options.push(c(&format!("-D{define}={value}"))?);
    }
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all strings outlive the calls; no headers are passed.
    let status = unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            source.as_ptr(),
            file.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    check(status, "nvrtcCreateProgram")?;
    // SAFETY: the program is alive and `pointers` holds as many options as said.
    let done =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    if done != sys::nvrtcResult::NVRTC_SUCCESS {
        let log = program_log(&program);
        return Err(Error::Compile {
            kernel: name.into(),
            arch: arch.into(),
            log,
        });
    }
    let mut bytes = 0;
    // SAFETY: the out-parameter is valid.
    let status = unsafe { sys::nvrtcGetCUBINSize(program.0, &mut bytes) };
    check(status, "nvrtcGetCUBINSize")?;
    let mut cubin = vec![0u8; bytes];
    // SAFETY: `cubin` holds the size NVRTC asked for.
    let status = unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) };
    check(status, "nvrtcGetCUBIN")?;
    Ok(cubin)
}

fn program_log(program: &Program) -> String {
    let mut bytes = 0;
    // SAFETY: the program is alive and the out-parameter valid.
    if unsafe { sys::nvrtcGetProgramLogSize(program.0, &mut bytes) }
        != sys::nvrtcResult::NVRTC_SUCCESS
    {
        return "no log".into();
    }
    let mut log = vec![0u8; bytes];
    // SAFETY: `log` holds the size NVRTC asked for.
    unsafe { sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()) };
    String::from_utf8_lossy(&log)
        .trim_end_matches(['\0', '\n'])
        .to_string()
}

fn check(code: sys::nvrtcResult, call: &'static str) -> Result<()> {
    if code == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(Error::Call {
        call,
        code: code as i64,
        name: format!("{code:?}"),
    })
}
