//! Rows 19 to 58: which rule a descriptor takes, and under which name it is counted.

use super::{Case, Differs, Row, Same, Verdict, row};

/// Why a count stands elsewhere than in the reference.
const LABELS: Verdict =
    Differs("the same counts, under the labels domain and rule instead of a dotted name");

#[test]
fn matching() {
    super::prove(ROWS, &Case::new(""));
}

pub(super) const ROWS: &[Row] = &[
    row(19, "an unknown domain is OK, and counted", Same, |case| {
        let before = case.metric("chronosdb_unknown_domain_total").unwrap();
        case.says("foo_domain | foo=bar", "OK | OK");
        assert_eq!(case.metric("chronosdb_unknown_domain_total"), Some(before + 1));
    }),
    row(
        20,
        "a descriptor without entries matches nothing",
        Differs("it says nothing: an error that names the field, not a silent pass"),
        |case| {
            let mut request = super::asking::parse("basic | key1=value1");
            request.descriptors[0].entries.clear();
            let error = case.send(request).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert_eq!(error.message(), "descriptors[0].entries: there must be at least one");
        },
    ),
    row(21, "another value than the only one is not limited", Same, |case| {
        case.says("basic | key1=something", "OK | OK");
        assert!(case.metric("chronosdb_no_rule_total{domain=\"basic\"}") > Some(0));
    }),
    row(22, "a parent without a limit does not limit", Same, |case| {
        case.says("basic | key1=value1", "OK | OK");
    }),
    row(23, "a request deeper than the rule is not limited", Same, |case| {
        case.says("basic | key2=value2 > subkey=subvalue", "OK | OK");
    }),
    row(24, "a child with another value is not limited", Same, |case| {
        case.says("basic | key5=value5 > subkey5=subvalue", "OK | OK");
    }),
    row(25, "a child for any value", Same, |case| {
        case.says("basic | key1=value1 > subkey1=r25", "OK | OK 4 of 5/SECOND");
        case.counted_as("basic | key1=value1 > subkey1=r25b", "basic", "key1=value1,subkey1");
    }),
    row(26, "an exact child before the one for any value", Same, |case| {
        case.says("basic | key1=value1 > subkey1=subvalue1", "OK | OK 9 of 10/SECOND");
        case.counted_as(
            "basic | key1=value1 > subkey1=subvalue1",
            "basic",
            "key1=value1,subkey1=subvalue1",
        );
    }),
    row(27, "any value, an exact one, and one without a limit", Same, |case| {
        case.says("basic | key2=r27", "OK | OK 19 of 20/MINUTE");
        case.says("basic | key2=value2", "OK | OK 29 of 30/MINUTE");
        case.says("basic | key2=value3", "OK | OK");
        case.counted_as("basic | key2=r27", "basic", "key2");
        case.counted_as("basic | key2=value2", "basic", "key2=value2");
    }),
    row(28, "hours, days and a name", Same, |case| {
        case.says("basic | key3=r28", "OK | OK 0 of 1/HOUR");
        case.says("basic | key4=r28", "OK | OK 0 of 1/DAY key4_rate_limit");
    }),
    row(29, "unlimited", Same, |case| case.says("basic | key6=foo", "OK | OK unlimited")),
    row(30, "detailed_metric counts each value", LABELS, |case| {
        case.says("basic | key7=r30", "OK | OK 69 of 70/MINUTE");
        case.counted_as("basic | key7=unspecified_value", "basic", "key7=unspecified_value");
        case.counted_as("basic | key7=another_value", "basic", "key7=another_value");
    }),
    row(31, "shadow mode exactly where it is written", Same, |case| {
        case.passes("shadow | key1=value1 > subkey1=subvalue1", "....");
        case.passes("shadow | key1=value1 > subkey1=r31", ".....x");
        case.passes("shadow | key2=r31", "....");
        case.passes("shadow | key2=value2", "..x");
    }),
    row(32, "a limit that comes with the request replaces the rules", Same, |case| {
        case.says("basic | key1=value1 > subkey1=r32 @10/DAY", "OK | OK 9 of 10/DAY");
        case.says("basic | key1=value1 > subkey1=r32 @10/DAY", "OK | OK 8 of 10/DAY");
    }),
    row(
        33,
        "another limit on the same entries continues the counters",
        Differs("the number may change at any time; another window has a log of its own"),
        |case| {
            case.says("basic | key1=value1 > subkey1=r33 @10/DAY", "OK | OK 9 of 10/DAY");
            case.says("basic | key1=value1 > subkey1=r33 @20/DAY", "OK | OK 18 of 20/DAY");
            case.says("basic | key1=value1 > subkey1=r33 @42/HOUR", "OK | OK 41 of 42/HOUR");
        },
    ),
    row(
        34,
        "each overridden value has statistics of its own",
        Differs("a client that invents values must not invent series: one for each path of keys"),
        |case| {
            case.says("basic | key1=value1 > subkey1=r34a @10/DAY", "OK | OK 9 of 10/DAY");
            case.says("basic | key1=value1 > subkey1=r34b @10/DAY", "OK | OK 9 of 10/DAY");
            case.counted_as("basic | key1=value1 > subkey1=r34c @10/DAY", "basic", "key1,subkey1");
            assert_eq!(case.counts("basic", "key1=value1,subkey1=r34a"), None);
        },
    ),
    row(35, "a limit for an unknown domain is not looked at", Same, |case| {
        case.says("foo_domain | key1=value1 @10/DAY", "OK | OK");
    }),
    row(36, "one rule for all values of a key", Same, |case| {
        case.counted_as("wild | noVal=foo1", "wild", "noVal");
        case.counted_as("wild | noVal=foo2", "wild", "noVal");
    }),
    row(37, "one rule for what a wildcard covers", Same, |case| {
        case.counted_as("wild | wild=foo1", "wild", "wild=foo*");
        case.counted_as("wild | wild=foo2", "wild", "wild=foo*");
        case.says("wild | wild=foo3", "OK | OK 19 of 20/MINUTE");
    }),
    row(38, "a wildcard below a parent", Same, |case| {
        case.counted_as("wild | nestedWild=val1 > wild=goo2", "wild", "nestedWild=val1,wild=goo*");
    }),
    row(39, "what a wildcard does not cover; a star that is not there", Same, |case| {
        case.says("wild | wild=bar", "OK | OK");
        case.says("wild | noWild=foo1", "OK | OK");
    }),
    row(40, "a star in the middle, which may be empty", Same, |case| {
        for value in ["barab", "bar123b", "barb"] {
            case.says(&format!("wild | midWild={value}"), "OK | OK 19 of 20/MINUTE");
        }
    }),
    row(41, "both ends must be there", Same, |case| {
        case.says("wild | midWild=bara | midWild=xbarb", "OK | OK | OK");
    }),
    row(42, "several stars", Same, |case| {
        for value in ["foo123bar456baz", "foobarbaz"] {
            case.says(&format!("wild | multiWild={value}"), "OK | OK 19 of 20/MINUTE");
        }
    }),
    row(43, "every part of several must be there", Same, |case| {
        case.says("wild | multiWild=foo123baz | multiWild=bar456baz", "OK | OK | OK");
    }),
    row(44, "value_to_metric on upper levels", LABELS, |case| {
        case.counted_as(
            "values | route=draw > http_method=GET > subject_id=123",
            "values",
            "route=draw,http_method=GET,subject_id",
        );
    }),
    row(45, "value_to_metric in the middle", LABELS, |case| {
        case.counted_as("values | k1=X > k2=Y > k3=Z", "values", "k1,k2=Y,k3");
    }),
    row(46, "no flags: keys only", LABELS, |case| {
        case.counted_as("values | plain1=a > plain2=b", "values", "plain1,plain2");
    }),
    row(47, "detailed_metric at the leaf shows every value", LABELS, |case| {
        case.counted_as("values | full=a > subject_id=123", "values", "full=a,subject_id=123");
    }),
    row(48, "written values with value_to_metric", LABELS, |case| {
        case.says("values | api=r48 > http_method=GET > subject_id=1", "OK | OK 59 of 60/MINUTE");
        case.says("values | api=r48 > http_method=POST > subject_id=1", "OK | OK 29 of 30/MINUTE");
        case.counted_as(
            "values | api=api > http_method=GET > subject_id=2",
            "values",
            "api=api,http_method=GET,subject_id",
        );
    }),
    row(49, "a wildcard with value_to_metric shows the real value", LABELS, |case| {
        case.counted_as(
            "values | user=u > action=readfile > resource=r",
            "values",
            "user,action=readfile,resource",
        );
    }),
    row(50, "an empty value adds nothing", LABELS, |case| {
        case.counted_as(
            "values | route= > http_method=GET > subject_id=1",
            "values",
            "route,http_method=GET,subject_id",
        );
    }),
    row(
        51,
        "the counter's key is the statistics' key",
        Differs("counters have the full path of values always; names in metrics are bounded"),
        |case| {
            case.says(
                "values | route=r51a > http_method=GET > subject_id=1 +60",
                "OK | OK 0 of 60/MINUTE",
            );
            case.says(
                "values | route=r51a > http_method=GET > subject_id=2",
                "OK | OK 59 of 60/MINUTE",
            );
        },
    ),
    row(52, "share_threshold: one counter for what the wildcard covers", Same, |case| {
        case.says("share | files=files/a.pdf", "OK | OK 99 of 100/MINUTE");
        case.says("share | files=files/b.csv", "OK | OK 98 of 100/MINUTE");
        case.counted_as("share | files=files/c.txt", "share", "files=files/*");
    }),
    row(53, "share_threshold wins over the real values", LABELS, |case| {
        case.counted_as("share | route=api/x > method=GET", "share", "route=api/*,method");
        case.counted_as(
            "share | service=svc/x > endpoint=get",
            "share",
            "service=svc/*,endpoint=get",
        );
        case.says("share | route=api/y > method=GET", "OK | OK 58 of 60/MINUTE");
    }),
    row(54, "one key at two levels shares at each", Same, |case| {
        case.says("share | files=top/a > files=nested/1", "OK | OK 299 of 300/MINUTE");
        case.says("share | files=top/b > files=nested/2", "OK | OK 298 of 300/MINUTE");
        case.says("share | nested=parent > files=nested/1", "OK | OK 199 of 200/MINUTE");
        case.counted_as(
            "share | files=top/c > files=nested/3",
            "share",
            "files=top/*,files=nested/*",
        );
    }),
    row(55, "a shared parent above a wildcard that is not", Same, |case| {
        case.says("share | path=path/a > file=file/1 > type=t", "OK | OK 119 of 120/MINUTE");
        case.says("share | path=path/b > file=file/1 > type=t", "OK | OK 118 of 120/MINUTE");
        case.says("share | path=path/b > file=file/2 > type=t", "OK | OK 119 of 120/MINUTE");
        case.counted_as(
            "share | path=path/c > file=file/3 > type=u",
            "share",
            "path=path/*,file=file/*,type",
        );
    }),
    row(56, "an exact value beside a shared wildcard", Same, |case| {
        case.says("share | file=test1", "OK | OK 49 of 50/MINUTE");
        case.says("share | file=test2", "OK | OK 99 of 100/MINUTE");
        case.says("share | file=test23", "OK | OK 98 of 100/MINUTE");
        case.says("share | file=test123", "OK | OK 97 of 100/MINUTE");
    }),
    row(57, "shared stars in the middle, and several", Same, |case| {
        case.says("share | midpath=/api/v1", "OK | OK 39 of 40/MINUTE");
        case.says("share | midpath=/api-beta-v1", "OK | OK 38 of 40/MINUTE");
        case.says("share | midpath=/api/v2", "OK | OK");
        case.says("share | multiroute=svceprpc", "OK | OK 49 of 50/MINUTE");
        case.says("share | multiroute=svcABCrpc", "OK | OK");
    }),
    row(58, "detailed_metric counts only at the rule that matched", LABELS, |case| {
        case.counted_as("values | own=a > deeper=b", "values", "own=a,deeper=b");
        case.counted_as("values | own=a", "values", "own");
        case.counted_as("values | upper=only > leaf=x", "values", "upper=only,leaf");
    }),
];
