//! Children of a metric whose label values come from callers: never more than a bound.

use std::sync::RwLock;

use ahash::AHashMap;

use super::{MAX_LABEL_BYTES, MAX_LABEL_VALUES, OTHER};

/// Makes the child of these label values.
type Make<C> = Box<dyn Fn(&[&str]) -> C + Send + Sync>;

/// Children by label values, at most [`MAX_LABEL_VALUES`], none too long; the last label of the
/// rest is `other`.
pub(super) struct Capped<C> {
    children: RwLock<AHashMap<String, C>>,
    make: Make<C>,
}

impl<C: Clone> Capped<C> {
    pub(super) fn new(make: impl Fn(&[&str]) -> C + Send + Sync + 'static) -> Self {
        Self { children: RwLock::default(), make: Box::new(make) }
    }

    pub(super) fn child(&self, labels: &[&str]) -> C {
        let joined;
        let name = match labels {
            [label] => *label,
            _ => {
                joined = labels.join("\0");
                &joined
            }
        };
        if let Some(child) = self.children.read().expect("no code panics holding this").get(name) {
            return child.clone();
        }
        let mut children = self.children.write().expect("no code panics holding this");
        if children.len() < MAX_LABEL_VALUES && name.len() <= MAX_LABEL_BYTES {
            return children.entry(name.to_owned()).or_insert_with(|| (self.make)(labels)).clone();
        }
        drop(children);
        let mut labels = labels.to_vec();
        if let Some(last) = labels.last_mut() {
            *last = OTHER;
        }
        (self.make)(&labels)
    }
}
