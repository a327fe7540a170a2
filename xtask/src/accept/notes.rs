//! What `accept` takes for granted of the flags it was given.

use spec_decode::{HeadKind, PriorQuery};

use crate::cli::AcceptCommandArgs;

/// Why the flags of context do nothing, where they do nothing.
pub(super) fn context(
    args: &AcceptCommandArgs,
    query: &PriorQuery,
    measured: bool,
) -> Option<String> {
    match (query.context_tokens, query.trained_context_tokens) {
        (None, None) => None,
        _ if measured => {
            let given = [
                args.context.as_ref().map(|_| "--context"),
                args.trained_context.as_ref().map(|_| "--trained-context"),
            ];
            let given: Vec<&str> = given.into_iter().flatten().collect();
            Some(format!(
                "{}: no effect, the accept length is the one measured; at another context measure it there",
                given.join(" and ")
            ))
        }
        (Some(_), None) if query.may_be_trained_short() => Some(
            "--context: the low end is a head trained on short text, as recipes take 2,048 to 4,096 tokens \
             (EAGLE traineagle3, SpecForge train_eagle3.py); --trained-context says what yours saw"
                .to_string(),
        ),
        (Some(_), None) => Some(
            "--context: no effect without --trained-context, the longest context the head saw"
                .to_string(),
        ),
        (None, Some(_)) => Some(
            "--trained-context: no effect without --context, the tokens that requests hold"
                .to_string(),
        ),
        (Some(context), Some(trained)) => (context <= trained)
            .then(|| "--context: within --trained-context, so nothing falls".to_string()),
    }
}

/// What is taken of the head's training, where that decides how fast it falls.
pub(super) fn training(model: Option<&str>, asked: bool, query: &PriorQuery) -> Option<String> {
    match (query.head, model, query.trained_steps) {
        (HeadKind::Mtp, Some(name), None) => Some(format!(
            "{}{name}: not known to have trained its module for one position only; if it \
             did, deep drafts accept less",
            if asked { "--model " } else { "" }
        )),
        (HeadKind::Mtp, None, _) => Some(
            "the module was trained on its own states; one that was not (DeepSeek's) falls faster, \
             and --model NAME tells"
                .to_string(),
        ),
        (head, Some(_), None) if asked => Some(format!("--model: no effect with --head {}", head.name())),
        _ => None,
    }
}
