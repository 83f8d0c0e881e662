//! Whether callers should be sent here, and if not, why not.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

/// What can keep the service from being ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// No rules are loaded.
    Rules,
    /// The store does not answer, and no policy stands in for it.
    Store,
}

/// Not ready until every part has said that it is well.
#[derive(Clone)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
    ready: watch::Sender<bool>,
}

struct State {
    rules: Option<String>,
    store: Option<String>,
    draining: bool,
    /// What the log said last; nothing before every part has been looked at.
    said: Option<bool>,
}

const NOT_YET: &str = "not looked at yet";

impl Default for Readiness {
    fn default() -> Self {
        let not_yet = || Some(NOT_YET.to_owned());
        let state = State { rules: not_yet(), store: not_yet(), draining: false, said: None };
        Self { state: Arc::new(Mutex::new(state)), ready: watch::Sender::new(false) }
    }
}

impl Readiness {
    /// How a part is: `None` is well.
    pub fn set(&self, part: Part, trouble: Option<String>) {
        self.change(|state| match part {
            Part::Rules => state.rules = trouble,
            Part::Store => state.store = trouble,
        });
    }

    /// The process ends: never ready again.
    pub fn drain(&self) {
        self.change(|state| state.draining = true);
    }

    /// Whether callers should be sent here.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Sees each change.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Why not, a line for each reason.
    pub fn reasons(&self) -> Vec<String> {
        self.state.lock().expect("no code panics holding this").reasons()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().expect("no code panics holding this");
        change(&mut state);
        let ready = state.reasons().is_empty();
        self.ready.send_if_modified(|before| std::mem::replace(before, ready) != ready);
        if state.draining || !state.is_known() || state.said.replace(ready) == Some(ready) {
            return;
        }
        if ready {
            tracing::info!("ready");
        } else {
            tracing::warn!(reasons = state.reasons().join("; "), "not ready");
        }
    }
}

impl State {
    fn is_known(&self) -> bool {
        ![&self.rules, &self.store].into_iter().flatten().any(|trouble| trouble == NOT_YET)
    }

    fn reasons(&self) -> Vec<String> {
        let named = |name, trouble: &Option<String>| Some(format!("{name}: {}", trouble.as_ref()?));
        let draining = self.draining.then(|| "draining: the process ends".to_owned());
        let parts = [named("rules", &self.rules), named("store", &self.store), draining];
        parts.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_part_is_well_and_never_after_draining() {
        let readiness = Readiness::default();
        assert_eq!(readiness.reasons().len(), 2);
        readiness.set(Part::Rules, None);
        assert!(!readiness.is_ready());
        readiness.set(Part::Store, None);
        assert!(readiness.is_ready());
        readiness.set(Part::Store, Some("gone".into()));
        assert_eq!(readiness.reasons(), ["store: gone"]);
        readiness.set(Part::Store, None);
        readiness.drain();
        readiness.set(Part::Store, None);
        assert!(!readiness.is_ready());
    }
}
