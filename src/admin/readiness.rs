//! Whether callers should be sent here, and if not, why not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

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
    /// What the log said last.
    said: Option<bool>,
    opened: Instant,
}

/// How long a start may take before the log says that it is not ready.
const START: Duration = Duration::from_secs(1);

impl Default for Readiness {
    fn default() -> Self {
        let not_yet = || Some("not looked at yet".to_owned());
        let (rules, store, opened) = (not_yet(), not_yet(), Instant::now());
        let state = State { rules, store, draining: false, said: None, opened };
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
        let starts = !ready && state.said.is_none() && state.opened.elapsed() < START;
        if state.draining || starts || state.said.replace(ready) == Some(ready) {
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
