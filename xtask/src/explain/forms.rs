//! Lines in every form in which engines and tools print a fact, written from their format strings
//! (SGLang, vLLM, TensorRT-LLM, llama.cpp, benches, NCCL, drivers), and the traps between them.

mod benches;
mod engines;
mod links;
mod others;
mod traps;

use super::{Value, facts_from_text};

/// What a form must give.
#[derive(Debug, Clone, Copy)]
enum Is {
    /// A number.
    N(f64),
    /// A word.
    T(&'static str),
    /// Nothing: the text does not say it.
    No,
}

/// A form: its name, the text, what it says.
type Form = (&'static str, &'static str, &'static [(&'static str, Is)]);

fn check(forms: &[Form]) {
    let mut wrong = Vec::new();
    for (name, text, facts) in forms {
        let read = facts_from_text(text, name);
        for (fact, right) in *facts {
            let found = read.get(fact).map(|fact| &fact.value);
            let good = match (right, found) {
                (Is::N(right), Some(Value::Number(read))) => {
                    (right - read).abs() <= 1e-6 * right.abs().max(1e-3)
                }
                (Is::T(right), Some(Value::Text(read))) => right == read,
                (Is::No, None) => true,
                _ => false,
            };
            if !good {
                wrong.push(format!("{name}: {fact} is {right:?}, read as {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
